//! A lab, driven through the `mainstay` binary as an operator would.

use crate::command::{self, Finished};
use crate::wait_for;
use anyhow::{Context, Result, anyhow, bail, ensure};
use mainstay_api::rest::{
    Health, NodeStatus, ResourceView, ScrubReport, ServicePhase, ServiceView, StatusView,
};
use mainstay_client::Client;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Longest time for a command that waits for the cluster.
const LONG: Duration = Duration::from_secs(300);
/// Longest time until the agent of a node answers again.
const AGENT_LIMIT: Duration = Duration::from_secs(90);

/// Name of the lab's port that is no node.
pub const CLIENT: &str = "client";

pub struct Lab {
    pub name: String,
    binary: PathBuf,
    dir: PathBuf,
}

/// A program of this workspace, built beside the one that runs (tests run one directory further
/// down).
///
/// # Errors
/// When it was not built.
pub fn built(program: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("path of this program")?;
    let found = own.ancestors().skip(1).take(2).map(|dir| dir.join(program)).find(|path| path.is_file());
    found.ok_or_else(|| anyhow!("`{program}` is not built beside {}: run `make build`", own.display()))
}

impl Lab {
    /// Names a lab; nothing is made or asked yet.
    ///
    /// # Errors
    /// When the binary was not built.
    pub fn new(name: &str) -> Result<Self> {
        let base = std::env::var_os("MAINSTAY_LAB_DIR").map_or("/var/tmp/mainstay-lab".into(), PathBuf::from);
        Ok(Self { name: name.into(), binary: built("mainstay")?, dir: base.join(name) })
    }

    /// The lab's own directory: state, disks, logs.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    #[must_use]
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// `mainstay` with these arguments, to be run by the caller.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(args);
        command
    }

    /// `mainstay lab VERB …` for this lab.
    ///
    /// # Errors
    /// When the command fails.
    pub fn lab(&self, args: &[&str]) -> Result<String> {
        let words = [&["lab", "--name", &self.name][..], args].concat();
        Ok(command::output(&mut self.command(&words), LONG)?)
    }

    /// Removes what an earlier run left under this name, then makes the lab and forms its cluster.
    ///
    /// # Errors
    /// When the command fails.
    pub fn up(&self, nodes: u8) -> Result<()> {
        self.up_with(nodes, &[])
    }

    /// The same with more options of `lab up`.
    ///
    /// # Errors
    /// When the command fails.
    pub fn up_with(&self, nodes: u8, more: &[&str]) -> Result<()> {
        self.down()?;
        self.lab(&[&["up", "--nodes", &nodes.to_string()][..], more].concat()).map(drop)
    }

    /// Removes the lab; succeeds when there is none.
    ///
    /// # Errors
    /// When something remains.
    pub fn down(&self) -> Result<()> {
        if self.dir.exists() { self.lab(&["down"]).map(drop) } else { Ok(()) }
    }

    /// # Errors
    /// When the command fails.
    pub fn kill(&self, node: &str) -> Result<()> {
        self.lab(&["kill", node]).map(drop)
    }

    /// # Errors
    /// When the command fails.
    pub fn start(&self, node: &str) -> Result<()> {
        self.lab(&["start", node]).map(drop)
    }

    /// A command inside a node, or in the client's network, to be run by the caller.
    #[must_use]
    pub fn inside(&self, node: &str, words: &[&str]) -> Command {
        self.command(&[&["lab", "--name", &self.name, "exec", node, "--"][..], words].concat())
    }

    /// Runs a command inside a node, or in the client's network, and returns its standard output.
    ///
    /// # Errors
    /// When it fails.
    pub fn exec(&self, node: &str, words: &[&str]) -> Result<String> {
        Ok(command::output(&mut self.inside(node, words), LONG)?)
    }

    /// Runs a shell script inside a node.
    ///
    /// # Errors
    /// When it fails.
    pub fn shell(&self, node: &str, script: &str) -> Result<String> {
        self.exec(node, &["sh", "-ec", script])
    }

    /// A verb of the command line, asked of any node that runs; whatever its exit code.
    ///
    /// # Errors
    /// When it cannot be run or does not end.
    pub fn try_cli(&self, args: &[&str]) -> Result<Finished> {
        Ok(command::finish(&mut self.command(&[&["--lab", self.name.as_str()][..], args].concat()), LONG)?)
    }

    /// Like [`Self::try_cli`], with these environment variables.
    ///
    /// # Errors
    /// When it cannot be run or does not end.
    pub fn try_cli_with(&self, args: &[&str], env: &[(&str, &str)]) -> Result<Finished> {
        let mut command = self.command(&[&["--lab", self.name.as_str()][..], args].concat());
        command.envs(env.iter().copied());
        Ok(command::finish(&mut command, LONG)?)
    }

    /// A verb of the command line that has to succeed.
    ///
    /// # Errors
    /// When it fails.
    pub fn cli(&self, args: &[&str]) -> Result<String> {
        Ok(command::output(&mut self.command(&[&["--lab", self.name.as_str()][..], args].concat()), LONG)?)
    }

    /// Runs a verb of the command line with `--json`. Its exit code tells the outcome, and not
    /// whether the command could be run.
    ///
    /// # Errors
    /// When its output is not the expected JSON.
    pub fn cli_json<T: DeserializeOwned>(&self, args: &[&str]) -> Result<T> {
        let finished = self.try_cli(&[&["--json"][..], args].concat())?;
        serde_json::from_str(&finished.stdout).with_context(|| {
            format!(
                "answer to {args:?} (exit code {}): {}{}",
                finished.code(),
                finished.stdout,
                finished.stderr
            )
        })
    }

    fn state(&self) -> Result<serde_json::Value> {
        let path = self.dir.join("lab.json");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text).context("the lab's state file")
    }

    /// Names of all nodes, also of those without power.
    ///
    /// # Errors
    /// When the lab's state cannot be read.
    pub fn nodes(&self) -> Result<Vec<String>> {
        let state = self.state()?;
        let nodes = state["nodes"].as_array().context("the lab has a list of nodes")?;
        Ok(nodes.iter().filter_map(|node| node["name"].as_str().map(str::to_owned)).collect())
    }

    /// The API of one node's agent, reached through its root directory.
    ///
    /// # Errors
    /// When the node has no power.
    pub fn agent(&self, node: &str) -> Result<Client> {
        let pid = self.init(node)?;
        Ok(Client::new(format!("/proc/{pid}/root/run/mainstay/agent.sock"))
            .with_timeout(Duration::from_secs(10)))
    }

    fn node(&self, node: &str) -> Result<serde_json::Value> {
        let state = self.state()?;
        let nodes = state["nodes"].as_array().context("the lab has a list of nodes")?;
        let found = nodes.iter().find(|entry| entry["name"] == node);
        found.cloned().with_context(|| format!("the lab has no node {node}"))
    }

    /// A node's address.
    ///
    /// # Errors
    /// When the lab has no such node.
    pub fn address(&self, node: &str) -> Result<String> {
        let found = self.node(node)?;
        Ok(found["address"].as_str().context("a node has an address")?.to_owned())
    }

    /// Process id, as seen from outside, of a node's first process.
    ///
    /// # Errors
    /// When the node has no power.
    pub fn init(&self, node: &str) -> Result<u64> {
        let found = self.node(node)?;
        found["init"].as_u64().with_context(|| format!("{node} has no power"))
    }

    /// The state of everything, asked of the first agent that answers and is part of the cluster.
    ///
    /// # Errors
    /// When none does.
    pub fn status(&self) -> Result<StatusView> {
        let mut why = anyhow!("the lab has no nodes");
        for node in self.nodes()? {
            match self.agent(&node).and_then(|agent| Ok(agent.get::<StatusView>("/v1/status")?)) {
                Ok(status) if status.cluster.is_some() => return Ok(status),
                Ok(_) => why = anyhow!("{node} is not part of a cluster"),
                Err(error) => why = error.context(format!("status of {node}")),
            }
        }
        Err(why)
    }

    /// # Errors
    /// When no agent answers or the resource is unknown.
    pub fn resource(&self, name: &str) -> Result<ResourceView> {
        let found = self.status()?.resources.into_iter().find(|resource| resource.name == name);
        found.with_context(|| format!("there is no resource {name}"))
    }

    /// # Errors
    /// When no agent answers or the service is unknown.
    pub fn service(&self, name: &str) -> Result<ServiceView> {
        let found = self.status()?.services.into_iter().find(|service| service.name == name);
        found.with_context(|| format!("there is no service {name}"))
    }

    /// Name of the node that the record names as primary.
    ///
    /// # Errors
    /// When there is none.
    pub fn primary(&self, resource: &str) -> Result<String> {
        self.resource(resource)?.primary.with_context(|| format!("{resource} has no primary"))
    }

    /// Name of the node that leads the control plane.
    ///
    /// # Errors
    /// When there is none.
    pub fn leader(&self) -> Result<String> {
        let cluster = self.status()?.cluster.context("no cluster")?;
        cluster.leader.context("the control plane has no leader")
    }

    /// Creates a resource and waits until all replicas are in sync.
    ///
    /// # Errors
    /// When the command fails.
    pub fn create_resource(&self, name: &str, size: &str, replicas: &[&str], more: &[&str]) -> Result<()> {
        let replicas = replicas.join(",");
        let words = ["resource", "create", name, "--size", size, "--replicas", &replicas];
        self.cli(&[&words[..], more].concat()).map(drop)
    }

    /// Writes the service file beside the lab's state and applies it.
    ///
    /// # Errors
    /// When the file cannot be written or is refused.
    pub fn apply_service(&self, name: &str, toml: &str) -> Result<()> {
        let path = self.dir.join(format!("{name}.toml"));
        std::fs::write(&path, toml).with_context(|| path.display().to_string())?;
        self.cli(&["service", "apply", &path.to_string_lossy()]).map(drop)
    }

    /// Waits until every replica of `resource` is in sync and every node is alive.
    ///
    /// # Errors
    /// When that takes longer than `limit`.
    pub fn wait_in_sync(&self, resource: &str, limit: Duration) -> Result<()> {
        wait_for(&format!("all replicas of {resource} in sync"), limit, || {
            let status = self.status()?;
            let nodes = status.cluster.map(|cluster| cluster.nodes).unwrap_or_default();
            let dead: Vec<_> =
                nodes.iter().filter(|n| n.status != NodeStatus::Alive).map(|n| &n.name).collect();
            ensure!(dead.is_empty(), "dead: {dead:?}");
            let view = self.resource(resource)?;
            let behind: Vec<_> = view.replicas.iter().filter(|r| !r.in_sync).map(|r| &r.node).collect();
            ensure!(behind.is_empty(), "{resource}: not in sync on {behind:?}, advice {:?}", view.advice);
            ensure!(view.health == Health::Ok, "{resource}: {:?}, {:?}", view.health, view.failure);
            Ok(())
        })
    }

    /// Waits until `service` runs, and returns the node where it does.
    ///
    /// # Errors
    /// When that takes longer than `limit`.
    pub fn wait_running(&self, service: &str, limit: Duration) -> Result<String> {
        wait_for(&format!("service {service} running"), limit, || {
            let view = self.service(service)?;
            if view.phase != ServicePhase::Running || view.node.is_none() || view.node != view.phase_node {
                bail!("{service}: {} on {:?}, {:?}", view.phase, view.phase_node, view.failures);
            }
            view.node.context("checked above")
        })
    }

    /// Compares all replicas at one position of the log.
    ///
    /// # Errors
    /// When the report cannot be had. A difference is no error here: see [`ScrubReport::equal`].
    pub fn scrub(&self, resource: &str) -> Result<ScrubReport> {
        self.cli_json(&["resource", "scrub", resource])
    }

    /// Process ids, inside the node, of one of Mainstay's own programs there.
    ///
    /// # Errors
    /// When the node has no power.
    pub fn pids(&self, node: &str, program: &str) -> Result<Vec<u32>> {
        let script = "for d in /proc/[0-9]*; do tr '\\0' ' ' <$d/cmdline 2>/dev/null | sed \"s|^|${d#/proc/} |\"; echo; done";
        let listed = self.shell(node, script)?;
        let wanted = self.binary.to_string_lossy().into_owned();
        let pid = |line: &str| {
            let mut words = line.split_whitespace();
            let pid = words.next()?.parse().ok()?;
            let own = words.next()?.ends_with("mainstay") || line.contains(&wanted);
            (own && words.next() == Some(program)).then_some(pid)
        };
        Ok(listed.lines().filter_map(pid).collect())
    }

    /// Ends one of Mainstay's own programs on a node with SIGKILL.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill_program(&self, node: &str, program: &str) -> Result<()> {
        let pids = self.pids(node, program)?;
        ensure!(!pids.is_empty(), "no {program} runs on {node}");
        let pids: Vec<_> = pids.iter().map(u32::to_string).collect();
        self.shell(node, &format!("kill -9 {}", pids.join(" "))).map(drop)
    }

    /// Ends the agent of a node with SIGKILL and waits until the next one answers. Commands ask the
    /// first node's agent, and do not wait for one.
    ///
    /// # Errors
    /// When no agent runs, or none answers in time.
    pub fn restart_agent(&self, node: &str) -> Result<()> {
        self.kill_program(node, "agent")?;
        self.wait_agent(node)
    }

    /// Waits until the agent of a node answers.
    ///
    /// # Errors
    /// When it does not in time.
    pub fn wait_agent(&self, node: &str) -> Result<()> {
        wait_for(&format!("an agent on {node}"), AGENT_LIMIT, || {
            self.agent(node)?.get::<serde_json::Value>("/v1/status").context("status").map(drop)
        })
    }

    /// Resident memory of engine and agent on a node, in bytes.
    ///
    /// # Errors
    /// When one of them does not run.
    pub fn memory(&self, node: &str) -> Result<u64> {
        let mut bytes = 0;
        for program in ["engine", "agent"] {
            for pid in self.pids(node, program)? {
                let status = self.exec(node, &["cat", &format!("/proc/{pid}/status")])?;
                let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("VmRSS")?;
                let kib: u64 = line.split_whitespace().nth(1).context("a number")?.parse()?;
                bytes += kib * 1024;
            }
        }
        ensure!(bytes > 0, "neither engine nor agent runs on {node}");
        Ok(bytes)
    }

    /// Keeps connections of the client from waiting for a dead server for ever: a peer that does
    /// not answer for three seconds is gone. Applies to programs that ask for keep-alive, as
    /// sysbench does.
    ///
    /// # Errors
    /// When the setting is refused.
    pub fn quick_keepalive(&self) -> Result<()> {
        let script = "cd /proc/sys/net/ipv4; echo 1 >tcp_keepalive_time; echo 1 >tcp_keepalive_intvl; \
                      echo 2 >tcp_keepalive_probes";
        self.shell(CLIENT, script).map(drop)
    }

    /// Starts a program inside a node or in the client's network, its output in a file of the lab.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn(&self, node: &str, words: &[&str], log: &str) -> Result<std::process::Child> {
        let path = self.dir.join(log);
        let file = std::fs::File::create(&path).with_context(|| path.display().to_string())?;
        let mut command = self.inside(node, words);
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        command.spawn().with_context(|| format!("start {words:?} in {node}"))
    }
}
