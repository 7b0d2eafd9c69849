//! The reconciler with a log and an engine that say what the test wants.

use super::*;
use crate::raft::ProposeError;
use crate::service::instance::{Disregarded, Neighbours};
use crate::service::left_mounts::MountLanes;
use mainstay_api::engine::{
    DeviceStatus, EngineLine, EngineStatus, Reply, RequestLine, read_line, write_line,
};
use mainstay_control::state::{Entry, Outcome, ResourceSpec, Settings};
use mainstay_ha::ServiceSpec;
use mainstay_pool::journals::Journals;
use mainstay_types::{Choices, ConfigVersion, Incarnation, Role, ServicePhase, VolumeId};
use std::io::BufReader;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};

const ME: NodeId = NodeId(1);
const R: ResourceId = ResourceId(1);
const INCARNATION: Incarnation = Incarnation(9);
const PATIENCE: Duration = Duration::from_secs(20);

struct TestLog;

impl ConsensusLog for TestLog {
    fn propose(&self, _: Command, _: Duration) -> Result<Outcome, ProposeError> {
        Err(ProposeError::Stopped)
    }

    fn submit(&self, _: Command) {}

    fn view(&self) -> View {
        View::default()
    }

    fn subscribe(&self, _: Box<dyn Fn(&View) + Send>) {}
}

/// A primary with a service that may start.
fn state() -> State {
    let mut state = State::default();
    let mut apply = |command| {
        assert!(state.apply(Entry { at_ms: 0, command }).is_ok());
        state.clone()
    };
    apply(Command::InitCluster { id: 1, name: "c".into(), settings: Settings::default() });
    apply(Command::AddNode {
        name: "n1".into(),
        agent_addr: "127.0.0.1:1".into(),
        engine_addr: "127.0.0.1:2".into(),
        voter: true,
        witness: false,
        nonce: 1,
    });
    let spec = ResourceSpec {
        volumes: vec![1 << 20],
        journal_bytes: 16 << 20,
        replicas: vec![ME],
        preferred: vec![ME],
    };
    apply(Command::CreateResource { name: "db".into(), spec, choices: Choices::default(), origin: None });
    let version = ConfigVersion(1);
    let ready = apply(Command::ReplicaReady { resource: R, version, node: ME, incarnation: INCARNATION });
    let expect_version = ready.resources[&R].record.version;
    apply(Command::Promote { resource: R, expect_version, by: ME, to: ME, reason: "test".into() });
    let spec = ServiceSpec::parse("name='db'\nresource='db'\n[[process]]\nname='p'\ncommand=['/bin/true']\n");
    apply(Command::ApplyService { spec: spec.unwrap() })
}

/// The node is promoted anew. In an earlier process it may have given its role up on the record
/// that it found.
fn promoted(mut state: State) -> State {
    let expect_version = state.resources[&R].record.version;
    let command = Command::Promote { resource: R, expect_version, by: ME, to: ME, reason: "test".into() };
    assert!(state.apply(Entry { at_ms: 0, command }).is_ok());
    state
}

/// A node, and an engine that answers nothing but questions about its state while `hangs` is set.
struct Lab {
    node: ReconcilerThread,
    inputs: Receiver<Input>,
    hangs: Arc<AtomicBool>,
    _dir: tempfile::TempDir,
}

fn replica(state: &State) -> ReplicaStatus {
    let record = &state.resources[&R].record;
    ReplicaStatus {
        resource: R,
        name: "db".into(),
        incarnation: INCARNATION,
        role: Role::Primary,
        epoch: record.epoch,
        version: record.version,
        volumes: vec![1 << 20],
        devices: vec![DeviceStatus {
            volume: VolumeId(0),
            path: "/dev/none".into(),
            ..DeviceStatus::default()
        }],
        ..ReplicaStatus::default()
    }
}

fn serve(stream: UnixStream, status: &EngineStatus, hangs: &AtomicBool) {
    let mut writer = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream);
    while let Ok(Some(RequestLine { id, request })) = read_line(&mut reader) {
        let reply = match request {
            Request::Status => Reply::Status(status.clone()),
            _ if hangs.load(Ordering::SeqCst) => continue,
            _ => Reply::Ok,
        };
        if write_line(&mut writer, &EngineLine::Reply { id, reply }).is_err() {
            return;
        }
    }
}

impl Lab {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (found, state) = (state(), promoted(state()));
        let hangs = Arc::new(AtomicBool::new(false));
        let status = EngineStatus { replicas: vec![replica(&state)], ..EngineStatus::default() };
        let listener = UnixListener::bind(dir.path().join("engine.sock")).unwrap();
        let engine_hangs = hangs.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                serve(stream, &status, &engine_hangs);
            }
        });
        let directory = mainstay_pool::of_node(dir.path()).replica_of(R, "db").place().to_owned();
        std::fs::create_dir_all(&directory).unwrap();
        let label = serde_json::json!({"resource": R, "name": "db", "incarnation": INCARNATION});
        std::fs::write(directory.join("replica.json"), label.to_string()).unwrap();
        let (queue, inputs) = channel();
        let handle = ReconcilerHandle { queue };
        let events = handle.clone();
        let engine = EngineLink::start(&dir.path().join("engine.sock"), move |input| {
            events.send(Input::Engine(input))
        });
        let done = handle.clone();
        let done = Mutex::new(done);
        let on_done: OnDone = Arc::new(move |event| lock(&done).send(Input::Service(event)));
        let parts = ReconcilerParts {
            node: ME,
            log: Arc::new(TestLog),
            replicas: Arc::new(Replicas::open(dir.path(), Journals::default(), engine.clone()).unwrap()),
            engine,
            places: Places {
                cgroup_root: dir.path().join("cgroup"),
                state_dir: dir.path().to_path_buf(),
                run_dir: dir.path().to_path_buf(),
                journal_dir: None,
                neighbours: Neighbours::default(),
                hindrances: Default::default(),
                disregarded: Disregarded::default(),
                mount_lanes: MountLanes::default(),
                log_writer: Vec::new(),
                hooks: None,
            },
            engine_absence: EngineAbsence::new(dir.path().to_path_buf(), |_| ()),
            metrics: Arc::default(),
            transport: Transport::new(),
            keys: Arc::new(Mutex::new(OwnTrust::load(dir.path(), false).unwrap())),
        };
        let mut lab = Self { node: ReconcilerThread::new(parts, handle, on_done), inputs, hangs, _dir: dir };
        lab.node.take(Input::State(View { state: Arc::new(found), replayed: true, ..View::default() }));
        lab.lease(false);
        lab.until(|input| matches!(input, Input::Engine(EngineInput::Connected { .. })));
        // Nothing of an earlier process is left, and the engine knows that it has to silence
        // nothing.
        lab.node.reconcile();
        let (mut swept, mut guarded) = (false, false);
        while !(swept && guarded) {
            let input = lab.inputs.recv_timeout(PATIENCE).unwrap();
            swept |= matches!(input, Input::Swept { .. });
            guarded |= confirmed(&input);
            lab.node.take(input);
        }
        lab.node.take(Input::State(View { state: Arc::new(state), replayed: true, ..View::default() }));
        lab.lease(true);
        lab
    }

    fn lease(&mut self, valid: bool) -> bool {
        self.node.take(Input::Lease(if valid { boot_now().plus_ms(60_000) } else { boot_now() }))
    }

    /// The engine's guard knows a lease now, and acted last at `silenced`.
    fn lease_taken(&mut self, silenced: Time) -> bool {
        let until = boot_now().plus_ms(60_000);
        self.node.take(Input::Engine(EngineInput::Lease { until, silenced }))
    }

    fn is_held(&self) -> bool {
        self.node.core.holds_steps()
    }

    /// Takes inputs up to one that is `awaited`.
    fn until(&mut self, awaited: impl Fn(&Input) -> bool) {
        loop {
            let input = self.inputs.recv_timeout(PATIENCE).unwrap();
            let found = awaited(&input);
            self.node.take(input);
            if found {
                return;
            }
        }
    }

    fn phase(&self) -> Option<ServicePhase> {
        self.node.core.service_phase("db")
    }
}

fn confirmed(input: &Input) -> bool {
    matches!(input, Input::Guarded { confirmed: true, .. })
}

#[test]
fn a_service_starts_when_the_engine_has_confirmed_that_it_silences_it() {
    let mut lab = Lab::new();
    lab.node.reconcile();
    assert_eq!(lab.phase(), Some(ServicePhase::Stopped));
    lab.until(confirmed);
    lab.node.reconcile();
    assert_eq!(lab.phase(), Some(ServicePhase::Starting));
}

/// R19: a lease that only this process has counted may have come too late for the guard.
#[test]
fn no_step_begins_before_the_engine_has_taken_the_lease() {
    let mut lab = Lab::new();
    lab.node.reconcile();
    lab.until(confirmed);
    lab.node.reconcile();
    assert_eq!(lab.phase(), Some(ServicePhase::Starting));
    assert!(lab.is_held());
    lab.lease_taken(Time(0));
    lab.node.reconcile();
    assert!(!lab.is_held());
}

/// Every heartbeat makes the lease longer, and a look at a thousand resources takes milliseconds.
#[test]
fn a_lease_that_goes_on_is_no_reason_to_look_at_everything() {
    let mut lab = Lab::new();
    assert!(lab.node.core.is_due(boot_now()), "there was none at the last look");
    lab.node.reconcile();
    lab.until(confirmed);
    lab.node.reconcile();
    assert!(!lab.lease(true) && !lab.node.core.is_due(boot_now()));
    assert!(lab.is_held() && lab.lease_taken(Time(0)), "a step waits for it");
    lab.node.reconcile();
    assert!(!lab.is_held() && !lab.lease_taken(Time(0)));
    assert!(!lab.lease(false) && lab.node.core.is_due(boot_now()), "it has ended");
}

/// R19: this process may have stood still or not been there when the guard acted, and may have a
/// lease again.
#[test]
fn the_agent_kills_a_silenced_service_however_late_it_hears_of_the_guard() {
    let mut lab = Lab::new();
    let before = boot_now();
    lab.node.reconcile();
    lab.until(confirmed);
    lab.node.reconcile();
    lab.lease_taken(before);
    lab.node.reconcile();
    assert_eq!(lab.phase(), Some(ServicePhase::Starting), "that was before it began");
    lab.lease_taken(boot_now());
    assert_eq!(lab.phase(), Some(ServicePhase::Killing));
}

/// R10
#[test]
fn a_lease_that_ends_before_the_confirmation_comes_starts_nothing() {
    let mut lab = Lab::new();
    lab.node.reconcile();
    lab.until(confirmed);
    lab.lease(false);
    lab.node.reconcile();
    assert!(lab.phase().is_none_or(ServicePhase::is_silent), "{:?}", lab.phase());
}

/// R19: the engine has confirmed the service. It is asked for an empty list when the service has
/// stopped, and hangs.
#[test]
fn a_service_does_not_start_on_a_list_that_may_be_replaced() {
    let mut lab = Lab::new();
    lab.node.reconcile();
    lab.until(confirmed);
    lab.hangs.store(true, Ordering::SeqCst);
    lab.lease(false);
    lab.node.reconcile();
    lab.until(|input| matches!(input, Input::Guarded { confirmed: false, .. }));
    lab.lease(true);
    lab.node.reconcile();
    assert_eq!(lab.phase(), Some(ServicePhase::Stopped));
    lab.hangs.store(false, Ordering::SeqCst);
    while lab.phase() == Some(ServicePhase::Stopped) {
        lab.until(|input| matches!(input, Input::Guarded { .. }));
        // An unconfirmed list is asked for again after a while.
        std::thread::sleep(Duration::from_millis(mainstay_ha::REPEAT_GUARD_MS));
        lab.node.reconcile();
    }
    assert_eq!(lab.phase(), Some(ServicePhase::Starting));
}

/// R19
#[test]
fn an_engine_that_hangs_does_not_delay_a_kill() {
    let mut lab = Lab::new();
    lab.node.reconcile();
    lab.until(confirmed);
    lab.node.reconcile();
    assert_eq!(lab.phase(), Some(ServicePhase::Starting));
    // Its answers to the start are not looked at.
    lab.hangs.store(true, Ordering::SeqCst);
    lab.node.take(Input::Engine(EngineInput::Disconnected));
    lab.lease(false);
    lab.node.reconcile();
    assert_eq!(lab.phase(), Some(ServicePhase::Killing));
    lab.node.reconcile();
    while lab.phase() == Some(ServicePhase::Killing) {
        let input = lab.inputs.recv_timeout(PATIENCE).unwrap();
        assert!(!matches!(input, Input::Guarded { .. }), "the kill came after the engine's time was over");
        lab.node.take(input);
    }
    assert_eq!(lab.phase(), Some(ServicePhase::Stopped));
}
