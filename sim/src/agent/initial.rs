//! The state that a simulated cluster starts with.

use crate::consensus::WALL_MS;
use crate::plan::{ResourceShape, Shape};
use mainstay_control::State;
use mainstay_control::level::LEVEL;
use mainstay_control::origin::SnapshotOf;
use mainstay_control::state::{Command, Entry, ResourceSpec, Settings};
use mainstay_ha::{Mount, Pages, Placement, Probe, Process, ServiceSpec, Vip};
use mainstay_types::settings::Changes;
use mainstay_types::{BLOCK_BYTES, BackgroundLimits, Choices, JOURNAL_BYTES_MIN, Key, NodeId, Policy};

/// A cluster that exists, with its nodes n1, n2, ..., its resources r0, r1, ... and their services
/// s0, s1, ...; no replica is made yet. The journals are as small as an operator may have them; the
/// simulated engine uses the shape's size.
///
/// # Panics
/// When the control plane refuses something: then the shape is not one that can exist.
#[must_use]
pub fn initial_state(shape: &Shape) -> State {
    let mut state = State::default();
    let settings =
        Settings { lease_ms: shape.lease_ms, heartbeat_ms: shape.heartbeat_ms, margin_ms: shape.margin_ms };
    apply(&mut state, Command::InitCluster { id: 1, name: "sim".into(), settings });
    for n in 1..=shape.nodes {
        apply(&mut state, add_node(n));
        if n > 1 && n < shape.nodes {
            // The next voter asks before the others have seen this one.
            let early = state.apply(Entry { at_ms: WALL_MS, command: add_node(n + 1) });
            assert!(!early.is_ok(), "two changes of the voters at once");
        }
        for seen_by in 1..=n {
            apply(&mut state, Command::VotersSeen { node: NodeId(seen_by), voters_version: u64::from(n) });
        }
    }
    for n in 1..=shape.nodes {
        apply(&mut state, Command::NodeLevel { node: NodeId(n), level: LEVEL });
    }
    apply(&mut state, Command::RaiseLevel { level: LEVEL });
    // The limit of each node is one of the cluster.
    let max_rate = shape.resources.first().map_or(0, |resource| resource.background.max_rate);
    if max_rate > 0 {
        let changes = Changes::from([(Key::CMaxRate, Some(max_rate))]);
        apply(&mut state, Command::ChangeSettings { resource: None, version: None, changes });
    }
    for (n, resource) in shape.resources.iter().enumerate() {
        if resource.late {
            continue;
        }
        apply(&mut state, create_resource(n, resource, None));
        if resource.service {
            apply(&mut state, Command::ApplyService { spec: service(n, None) });
        }
    }
    state
}

/// # Panics
/// When the control plane refuses it.
fn apply(state: &mut State, command: Command) {
    let outcome = state.apply(Entry { at_ms: WALL_MS, command: command.clone() });
    assert!(outcome.is_ok(), "{command:?}: {outcome:?}");
}

/// Makes resource number `n`, of a snapshot of another one if it is named.
pub fn create_resource(n: usize, shape: &ResourceShape, origin: Option<SnapshotOf>) -> Command {
    let spec = ResourceSpec {
        volumes: shape.volumes.iter().map(|blocks| blocks * BLOCK_BYTES).collect(),
        journal_bytes: JOURNAL_BYTES_MIN,
        replicas: shape.replicas.iter().copied().map(NodeId).collect(),
        preferred: Vec::new(),
    };
    let background = BackgroundLimits { max_rate: 0, ..shape.background };
    let policy = Policy { slow: shape.slow, background, ..Policy::default() };
    Command::CreateResource { name: format!("r{n}"), spec, choices: Choices::of(&policy), origin }
}

/// Adds node number `n`, counted from 1, as a voter.
pub fn add_node(n: u32) -> Command {
    Command::AddNode {
        name: format!("n{n}"),
        agent_addr: format!("10.1.0.{n}:7400"),
        engine_addr: format!("10.1.0.{n}:7401"),
        voter: true,
        witness: false,
        nonce: u64::from(n),
    }
}

/// A mount, a process and an address on resource number `n`. Its time limits are short, so that a
/// run of a minute sees them expire.
///
/// `preferred`: the node where the service runs whenever it can. The process is told a preferred
/// node with an odd number as well, so the service has to restart for it. A preferred node with an
/// even number is changed in place.
#[must_use]
pub fn service(n: usize, preferred: Option<u32>) -> ServiceSpec {
    let name = format!("s{n}");
    ServiceSpec {
        resource: format!("r{n}"),
        mount: Some(Mount {
            volume: 0,
            path: format!("/srv/{name}"),
            hide_files: false,
            fstype: "xfs".into(),
            options: String::new(),
            mkfs: true,
            mkfs_options: Vec::new(),
            grow: true,
        }),
        processes: vec![Process {
            name: "db".into(),
            command: vec!["/usr/bin/db".into()],
            ocf: None,
            unit: None,
            prepare: Vec::new(),
            user: None,
            prepare_user: None,
            env: preferred
                .filter(|node| node % 2 == 1)
                .map(|node| ("PREFERRED".to_owned(), node.to_string()))
                .into_iter()
                .collect(),
            start_timeout_s: 10,
            stop_timeout_s: 5,
            stop_signal: "SIGTERM".into(),
            ready: None,
            probe: Some(Probe::Command(vec!["/usr/bin/db".into(), "--ping".into()])),
            probe_interval_s: 2,
            probe_timeout_s: 3,
            probe_failures: 3,
            pages: Some(Pages {
                size: 16 << 10,
                arguments: vec!["--whole-pages".into()],
                path: None,
                buffered: false,
                interval_s: 86_400,
                timeout_s: 10,
            }),
        }],
        vips: vec![Vip { address: format!("10.2.0.{}/24", n + 1), interface: None }],
        policy: mainstay_ha::Policy {
            restart_limit: 2,
            window_s: 60,
            failback: preferred.is_some(),
            preferred: preferred.map(|node| format!("n{node}")).into_iter().collect(),
        },
        placement: Placement::default(),
        name,
    }
}
