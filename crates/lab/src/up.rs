//! Makes a lab and forms a cluster of its nodes.

use super::cli::UpArgs;
use super::state::{CLIENT, Lab, Lock, Node, Phase, node_name};
use super::{cgroup, disk, down, logs, machine, network, node, program, sys, tool};
use crate::failure::{Code, Context, Failure, Outcome};
use crate::output::{Output, Progress};
use mainstay_agent::service::place::{needed, resolve};
use mainstay_api::rest::{
    ClusterInit, ClusterJoin, ClusterView, NodeStatus, StatusView, TokenCreate, TokenMade,
};
use mainstay_client::Client;
use mainstay_types::size;
use std::path::Path;
use std::time::{Duration, Instant};

const AGENT_PORT: u16 = 7400;
/// Time limit for an agent to answer, to join, and for all together to see each other.
const STEP_WITHIN: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);
/// One request to an agent that may be starting.
const REQUEST_WITHIN: Duration = Duration::from_secs(10);

pub fn run(base: &Path, name: &str, args: &UpArgs, output: Output) -> Outcome<()> {
    tool::check()?;
    if args.systemd {
        machine::check(args.package.as_deref())?;
    } else if !args.plain {
        program::of_nodes()?;
    }
    if args.disk < disk::DISK_BYTES_MIN {
        let least = size::size_words(disk::DISK_BYTES_MIN);
        return Err(Failure::new(
            Code::LabDiskSmall,
            "the disk is too small",
            format!("Give at least {least}."),
        ));
    }
    refuse_wrong_witnesses(args)?;
    refuse_system_directory(base)?;
    // Before anything is made, so that an interruption at any point is followed by a clean-up.
    sys::note_interrupts();
    let dir = base.join(name);
    down::refuse_foreign(&dir)?;
    std::fs::create_dir_all(&dir).or_fail(Code::LabState, || format!("make {}", dir.display()))?;
    let base = std::fs::canonicalize(base).or_fail(Code::LabState, || format!("find {}", base.display()))?;
    let _lock = Lock::take(&base, name)?;
    refuse_remains(&base, name)?;
    let plain = args.plain || args.systemd && args.package.is_none();
    let mut lab = Lab::plan(&base, name, args.nodes, args.disk, plain);
    (lab.directories, lab.systemd) = (args.directories, args.systemd);
    for witness in &args.witness {
        lab.node_mut(witness)?.witness = true;
    }
    // Recorded before it exists: whatever happens now, `down` finds it.
    lab.save()?;
    if let Err(failure) = create(&mut lab, args) {
        return Err(give_up(&base, &lab, args, failure));
    }
    output.result(&lab, summary)
}

/// Refuses a directory of the system as the place of labs: `lab down` removes what is there.
fn refuse_system_directory(base: &Path) -> Outcome<()> {
    let path = std::path::absolute(base).and_then(|path| resolve(&path));
    let path = path.or_fail(Code::LabState, || format!("look at {}", base.display()))?;
    let Some(why) = needed(&path, &[]) else { return Ok(()) };
    let remedy = "Give --dir with a directory of its own, for example `--dir /var/tmp/mainstay-lab`.";
    Err(Failure::new(Code::BadDirectory, format!("--dir: {} {why}", path.display()), remedy))
}

/// The first node makes the cluster, which a witness cannot: it joins one.
fn refuse_wrong_witnesses(args: &UpArgs) -> Outcome<()> {
    let able: Vec<String> = (2..=args.nodes).map(node_name).collect();
    let Some(wrong) = args.witness.iter().find(|name| !able.contains(name)) else { return Ok(()) };
    let remedy = if able.is_empty() {
        "Give at least --nodes 2: n1 makes the cluster and holds data.".to_owned()
    } else {
        format!("Name one of {}: n1 makes the cluster and holds data.", able.join(", "))
    };
    Err(Failure::new(Code::LabWitness, format!("{wrong} cannot be a witness"), remedy))
}

fn refuse_remains(base: &Path, name: &str) -> Outcome<()> {
    let found = down::remains(base, name)?;
    if found.is_empty() {
        return Ok(());
    }
    if let Ok(lab) = Lab::load(base, name)
        && lab.phase == Phase::Up
        && lab.nodes.iter().any(|node| lab.init_pid(node).is_some())
    {
        let remedy = format!(
            "Use it (`mainstay lab status --name {name}`) or end it: mainstay lab down --name {name}"
        );
        return Err(Failure::new(Code::LabIsUp, format!("lab `{name}` exists already and is up"), remedy));
    }
    Err(Failure::new(
        Code::LabRemains,
        format!("an earlier lab `{name}` was not taken down; there are still: {}", found.join(", ")),
        format!("mainstay lab down --name {name}"),
    ))
}

/// Removes what was made so far and says so.
fn give_up(base: &Path, lab: &Lab, args: &UpArgs, mut failure: Failure) -> Failure {
    if args.keep && !sys::interrupted() {
        failure.problem.remedy =
            format!("Everything is left as it is; mainstay lab down --name {}", lab.name);
        return failure;
    }
    match down::remove(base, &lab.name) {
        Ok(()) => failure.problem.message += "; what was made of the lab is removed again",
        Err(second) => {
            failure.problem.message += &format!("; and cleaning up failed: {}", second.problem.message);
            failure.problem.remedy = format!("mainstay lab down --name {}", lab.name);
        }
    }
    failure
}

/// Fails if the operator has interrupted the command.
pub fn go_on() -> Outcome<()> {
    if sys::interrupted() {
        return Err(Failure::new(
            Code::Interrupted,
            "interrupted",
            "To make the lab, run the command again.",
        ));
    }
    Ok(())
}

fn create(lab: &mut Lab, args: &UpArgs) -> Outcome<()> {
    let mut progress = Progress::new();
    progress.show("making the switch");
    network::create_switch(lab)?;
    cgroup::create(lab, CLIENT)?;
    network::plug(lab, &lab.client())?;
    let names: Vec<String> = lab.nodes.iter().map(|node| node.name.clone()).collect();
    for name in &names {
        go_on()?;
        progress.show(&format!("starting {name}"));
        let logs = node::log_dir(lab, name);
        std::fs::create_dir_all(&logs).or_fail(Code::LabState, || format!("make {}", logs.display()))?;
        if lab.directories {
            let directory = node::directory(lab, name);
            std::fs::create_dir_all(&directory)
                .or_fail(Code::LabDisk, || format!("make the disk {}", directory.display()))?;
        } else {
            disk::create(&node::image(lab, name), lab.disk_bytes, !args.no_reflink)?;
        }
        node::start(lab, name)?;
    }
    // All machines start at the same time.
    for name in names.iter().filter(|_| args.systemd) {
        machine::wait_booted(lab, name)?;
        if let Some(package) = &args.package {
            progress.show(&format!("installing the package on {name}"));
            machine::install(lab, name, package)?;
        }
    }
    if !lab.plain {
        form_cluster(lab, args, &mut progress)?;
    }
    go_on()?;
    lab.phase = Phase::Up;
    lab.save()
}

/// Repeats a step until it gives a value. Between attempts it looks whether to stop.
fn within<T>(what: &str, mut step: impl FnMut() -> Outcome<Option<T>>) -> Outcome<T> {
    let deadline = Instant::now() + STEP_WITHIN;
    let mut last = None;
    loop {
        go_on()?;
        match step() {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => {}
            // That is so whenever it is tried again.
            Err(failure) if failure.problem.code == Code::BadSettings => return Err(failure),
            Err(failure) => last = Some(failure.problem.message),
        }
        if Instant::now() > deadline {
            let why = last.map_or(String::new(), |last| format!(": {last}"));
            let limit = STEP_WITHIN.as_secs();
            return Err(Failure::new(
                Code::LabCluster,
                format!("{what} took longer than {limit} s{why}"),
                "Run the command again with --keep, and look at `mainstay lab logs NODE`.",
            ));
        }
        std::thread::sleep(POLL);
    }
}

/// Waits until the agent of a node that was started answers, so that the next command finds it.
pub fn wait_for_agent(lab: &Lab, name: &str) -> Outcome<()> {
    let member = lab.node(name)?;
    let client = Client::new(lab.agent_socket(member)?).with_timeout(REQUEST_WITHIN);
    within(&format!("the agent of {name}"), || {
        lab.running(member)?;
        Ok(Some(client.get::<StatusView>("/v1/status").map(drop)?))
    })
    .map_err(|mut failure| {
        failure = with_log(lab, name, failure);
        failure.problem.remedy =
            format!("The node runs on; its logs are in {}.", node::log_dir(lab, name).display());
        failure
    })
}

fn form_cluster(lab: &Lab, args: &UpArgs, progress: &mut Progress) -> Outcome<()> {
    let mut first: Option<Client> = None;
    for member in &lab.nodes {
        let name = &member.name;
        let client = Client::new(lab.agent_socket(member)?).with_timeout(REQUEST_WITHIN);
        progress.show(&format!("waiting for the agent of {name}"));
        within(&format!("the agent of {name}"), || {
            lab.running(member)?;
            let status: StatusView = client.get("/v1/status")?;
            Ok((status.engine.connected || member.witness).then_some(()))
        })
        .map_err(|failure| with_log(lab, name, failure))?;
        progress.show(&format!("making {name} a member"));
        within(&format!("the membership of {name}"), || {
            let address = format!("{}:{AGENT_PORT}", member.address);
            let joined: Result<ClusterView, _> = if let Some(first) = &first {
                let life_ms = u64::try_from(STEP_WITHIN.as_millis() * 2).unwrap_or(u64::MAX);
                let wanted = TokenCreate { node: name.clone(), life_ms };
                let made: TokenMade = first.post("/v1/cluster/tokens", &wanted)?;
                let request = ClusterJoin {
                    peer: format!("{}:{AGENT_PORT}", lab.nodes[0].address),
                    node: name.clone(),
                    address: Some(address),
                    engine_address: None,
                    witness: member.witness,
                    replace: false,
                    token: made.token,
                };
                client.post("/v1/cluster/join", &request)
            } else {
                let request = ClusterInit {
                    name: lab.name.clone(),
                    node: name.clone(),
                    address,
                    engine_address: None,
                    lease_ms: args.lease_ms,
                    heartbeat_ms: None,
                };
                client.post("/v1/cluster/init", &request)
            };
            // A request whose answer got lost may have been carried out all the same.
            let member_now =
                client.get::<StatusView>("/v1/status").is_ok_and(|status| status.cluster.is_some());
            if joined.is_ok() || member_now {
                Ok(Some(()))
            } else {
                joined.map(|_| None).map_err(Failure::from)
            }
        })
        .map_err(|failure| with_log(lab, name, failure))?;
        first.get_or_insert(client);
    }
    let Some(first) = first else { return Ok(()) };
    progress.show("waiting until all nodes see each other");
    within("seeing all nodes alive", || {
        let cluster: ClusterView = first.get("/v1/cluster")?;
        let well = cluster.nodes.iter().filter(|node| node.status == NodeStatus::Alive && node.connected);
        Ok((well.count() == lab.nodes.len()).then_some(()))
    })
}

/// The end of a node's logs usually says why it does not answer.
fn with_log(lab: &Lab, name: &str, mut failure: Failure) -> Failure {
    for program in ["init", "engine", "agent"] {
        let lines = logs::tail(&node::log_dir(lab, name).join(format!("{program}.log")), 5);
        for line in lines {
            failure.problem.message += &format!("\n  {name} {program} | {line}");
        }
    }
    failure.problem.remedy = "`mainstay lab up --keep` leaves the logs to look at.".into();
    failure
}

fn summary(lab: &Lab) -> String {
    let name = &lab.name;
    let shown = |node: &Node| {
        let role = if node.witness { ", witness" } else { "" };
        format!("{} ({}{role})", node.name, node.address)
    };
    let nodes: Vec<_> = lab.nodes.iter().map(shown).collect();
    let client = lab.client().address;
    let mut text = format!("lab {name} is up: {}, client ({client})\nnext:", nodes.join(", "));
    if !lab.plain {
        text += &format!("\n  mainstay --lab {name} status");
        text += &format!(
            "\n  mainstay --lab {name} resource create db --size 1GiB --replica-count {}",
            lab.nodes.iter().filter(|node| !node.witness).count().min(3)
        );
    }
    text += &format!("\n  mainstay lab exec n1 --name {name} -- bash\n  mainstay lab kill n1 --name {name}");
    text + &format!("\n  mainstay lab down --name {name}")
}
