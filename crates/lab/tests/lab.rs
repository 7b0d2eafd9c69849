//! The lab with real namespaces, disks and power cuts. Needs root and the lab's tools; the nodes
//! run their first process only, except in one test, whose node runs the `mainstay` beside this
//! program.

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A lab that is taken down at the end of its test, however that ends.
struct Lab {
    name: String,
    dir: PathBuf,
    _parent: tempfile::TempDir,
}

impl Lab {
    /// Names a lab; nothing exists yet.
    fn plan(name: &str) -> Self {
        assert!(nix::unistd::geteuid().is_root(), "tests of the lab have to run as root");
        // The host's /tmp may be in memory, where direct I/O is not the same.
        let parent = tempfile::tempdir_in("/var/tmp").unwrap();
        let name = format!("{name}-{}", std::process::id());
        Self { name, dir: parent.path().join("labs"), _parent: parent }
    }

    fn up(name: &str, nodes: u8) -> Self {
        let lab = Self::plan(name);
        lab.done(&lab.up_args(nodes));
        lab
    }

    fn up_args(&self, nodes: u8) -> Vec<String> {
        ["up", "--plain", "--disk", "1GiB", "--nodes", &nodes.to_string()].map(String::from).into()
    }

    fn command(&self, args: &[impl AsRef<str>]) -> Command {
        // A program that a shell starts in the background ignores Ctrl-C, and its children inherit
        // that.
        let mut command = Command::new("env");
        command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_mainstay-lab")]);
        command.args(["--name", &self.name, "--dir"]).arg(&self.dir);
        command.args(args.iter().map(AsRef::as_ref)).stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[impl AsRef<str>]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs a command that must succeed.
    fn done(&self, args: &[impl AsRef<str>]) -> String {
        let output = self.run(args);
        let names: Vec<_> = args.iter().map(AsRef::as_ref).collect();
        assert!(output.status.success(), "lab {names:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that must fail with this code.
    fn refused(&self, args: &[impl AsRef<str>], code: &str) {
        let output = self.run(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(&format!("[{code}]")), "expected {code}: {said}");
    }

    /// Runs a shell script in a node; its exit code and output.
    fn shell(&self, node: &str, script: &str) -> (Option<i32>, String) {
        let output = self.run(&["exec", node, "--", "bash", "-c", script]);
        (output.status.code(), String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Whether packets go from one node to an address and back. No program listens there, so a
    /// refusal is an answer, and silence is none.
    fn reaches(&self, from: &str, address: &str) -> bool {
        let script = format!("timeout 1 bash -c 'exec 3<>/dev/tcp/{address}/9' 2>/dev/null");
        match self.shell(from, &script).0 {
            Some(1) => true,
            Some(124) => false,
            other => panic!("unexpected answer {other:?}"),
        }
    }

    fn state(&self, node: &str) -> String {
        let output = self.command(&["status", "--json"]).output().unwrap();
        let view: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let nodes = view["nodes"].as_array().unwrap();
        nodes.iter().find(|found| found["name"] == node).unwrap()["state"].as_str().unwrap().to_owned()
    }

    fn traces(&self) -> BTreeSet<String> {
        traces(&self.name, &self.dir)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.run(&["down"]);
    }
}

/// Everything on the machine that belongs to a lab of this name: namespaces, mounts, loop devices,
/// control groups, processes, files.
fn traces(name: &str, dir: &Path) -> BTreeSet<String> {
    let list = |path: &str| -> Vec<String> {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().display().to_string()).collect()
    };
    let read = |path: String| std::fs::read_to_string(path).unwrap_or_default();
    let mut found: Vec<String> = list("/run/netns");
    found.extend(read("/proc/self/mountinfo".into()).lines().map(String::from));
    for block in list("/sys/block") {
        found.push(format!("{block} {}", read(format!("{block}/loop/backing_file"))));
    }
    found.extend(list("/sys/fs/cgroup"));
    found.extend(list("/sys/fs/cgroup/unified"));
    // If the parent of a dead process is the machine's own first process, that process has to reap
    // it.
    let lives = |process: &String| !read(format!("{process}/status")).contains("State:\tZ");
    for process in list("/proc").into_iter().filter(lives) {
        found.push(format!("{process} {}", read(format!("{process}/cgroup")).replace('\n', " ")));
    }
    if dir.exists() {
        found.push(dir.display().to_string());
    }
    let marks = [format!("mainstay-{name}."), format!("mainstay-lab-{name}"), dir.display().to_string()];
    found.into_iter().filter(|line| marks.iter().any(|mark| line.contains(mark))).collect()
}

/// Waits for something that happens soon.
fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "{what} does not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_node_is_a_machine_of_its_own() {
    let lab = Lab::up("own", 2);
    let (_, name) = lab.shell("n2", "hostname");
    assert_eq!(name, "n2");
    assert_eq!(lab.shell("n1", "ps -o comm= -p 1").1, "mainstay-lab");
    assert_eq!(lab.shell("n1", "stat -f -c %T /var/lib/mainstay").1, "xfs");
    assert_eq!(lab.shell("n1", "exit 7").0, Some(7));
    assert_eq!(lab.shell("n1", "kill -9 $$").0, Some(137));
    assert_eq!(lab.run(&["exec", "n1", "--", "/no/such/program"]).status.code(), Some(125));
    // Neither the other nodes nor the machine see what a node writes outside its disk.
    assert_eq!(lab.shell("n1", "mkdir /srv/only-n1 && touch /run/only-n1").0, Some(0));
    assert_eq!(lab.shell("n2", "ls -d /srv/only-n1 /run/only-n1 2>/dev/null").1, "");
    assert!(!Path::new("/srv/only-n1").exists() && !Path::new("/run/only-n1").exists());
    // Orphans are reaped by the first process.
    lab.shell("n1", "(sleep 0.1 &) ; exit 0");
    soon("the end of the orphan", || lab.shell("n1", "ps -o stat= -e | grep -c Z").1 == "0");
}

#[test]
fn links_are_cut_and_healed() {
    let lab = Lab::up("cut", 3);
    assert!(lab.reaches("n1", "10.213.0.2") && lab.reaches("client", "10.213.0.3"));
    lab.done(&["cut", "n1", "n2"]);
    assert!(!lab.reaches("n1", "10.213.0.2") && !lab.reaches("n2", "10.213.0.1"));
    assert!(lab.reaches("n1", "10.213.0.3") && lab.reaches("client", "10.213.0.1"));
    // A floating address is cut like any other.
    assert_eq!(lab.shell("n2", "ip address add 10.213.0.100/24 dev eth0").0, Some(0));
    assert!(lab.reaches("n3", "10.213.0.100") && !lab.reaches("n1", "10.213.0.100"));
    lab.done(&["isolate", "n3"]);
    assert!(!lab.reaches("n3", "10.213.0.1") && !lab.reaches("client", "10.213.0.3"));
    assert!(lab.reaches("client", "10.213.0.1"));
    lab.done(&["heal"]);
    assert!(lab.reaches("n1", "10.213.0.2") && lab.reaches("n3", "10.213.0.1"));
    lab.refused(&["cut", "n1", "n9"], "lab-node-unknown");
    lab.refused(&["cut", "n1", "n1"], "lab-cut");
}

#[test]
fn a_power_cut_loses_unsynced_files_and_keeps_synced_ones() {
    let lab = Lab::up("power", 2);
    let write = "cd /var/lib/mainstay && head -c 1M /dev/urandom >kept && sync kept . && cksum <kept \
                 && head -c 1M /dev/urandom >lost && ip address add 10.213.0.100/24 dev eth0";
    let (code, sum) = lab.shell("n1", write);
    assert_eq!(code, Some(0));
    lab.done(&["kill", "n1"]);
    assert_eq!(lab.state("n1"), "no-power");
    assert!(!lab.reaches("n2", "10.213.0.1"));
    lab.refused(&["kill", "n1"], "lab-node-down");
    lab.refused(&["exec", "n1", "--", "true"], "lab-node-down");
    lab.done(&["start", "n1"]);
    lab.refused(&["start", "n1"], "lab-node-runs");
    assert_eq!(lab.shell("n1", "cksum </var/lib/mainstay/kept").1, sum);
    let lost = lab.shell("n1", "wc -c </var/lib/mainstay/lost 2>/dev/null || echo 0").1;
    assert_eq!(lost, "0", "what was only in memory has survived");
    assert!(lab.reaches("n2", "10.213.0.1") && !lab.reaches("n2", "10.213.0.100"), "the address is gone");
}

/// The writer records on the host which writes it was told are durable. All of these have to be
/// there.
#[test]
fn nothing_that_was_synced_is_lost_under_load() {
    let lab = Lab::up("load", 1);
    let told = lab.dir.join("told");
    for _ in 0..3 {
        std::fs::write(&told, "").unwrap();
        let script = "cd /var/lib/mainstay; n=0; while :; do n=$((n+1)); echo $n >n.new; sync n.new; \
                      mv n.new n; sync .; echo $n; done";
        let mut load = lab.command(&["exec", "n1", "--", "bash", "-c", script]);
        let mut load = load.stdout(std::fs::File::create(&told).unwrap()).spawn().unwrap();
        soon("the load", || std::fs::read_to_string(&told).unwrap().lines().count() > 20);
        lab.done(&["kill", "n1"]);
        assert_eq!(load.wait().unwrap().code(), Some(137), "the command dies with its node");
        let told: u64 = std::fs::read_to_string(&told).unwrap().lines().last().unwrap().parse().unwrap();
        lab.done(&["start", "n1"]);
        let there: u64 = lab.shell("n1", "cat /var/lib/mainstay/n").1.parse().unwrap();
        assert!(there >= told, "told {told}, found {there}");
    }
}

/// When the engine is dead, the last process of such a node unmounts the file system on the
/// engine's own device.
#[test]
fn a_node_dies_at_once_while_a_file_system_on_its_volume_is_written() {
    let lab = Lab::plan("volume");
    lab.done(&["up", "--nodes", "1", "--disk", "2GiB"]);
    let make = "mainstay resource create r --size 512MiB --replica-count 1 && \
                mkfs.xfs -q /run/mainstay/dev/r/0";
    assert_eq!(lab.shell("n1", make).0, Some(0));
    for end in ["kill", "down"] {
        let write = "mkdir /srv/r && mount /run/mainstay/dev/r/0 /srv/r && (setsid sh -c 'while :; do dd if=/dev/zero of=/srv/r/f \
                     bs=64k count=200 oflag=sync; done' </dev/null >/dev/null 2>&1 &) && sleep 1 && ls /srv/r";
        soon("the volume", || lab.shell("n1", "test -b /run/mainstay/dev/r/0").0 == Some(0));
        assert_eq!(lab.shell("n1", write), (Some(0), "f".to_owned()));
        let start = Instant::now();
        lab.done(&if end == "kill" { vec!["kill", "n1"] } else { vec!["down"] });
        assert!(start.elapsed() < Duration::from_secs(10), "{end} took {:?}", start.elapsed());
        if end == "kill" {
            lab.done(&["start", "n1"]);
        }
    }
    assert_eq!(lab.traces(), BTreeSet::new());
}

#[test]
fn a_paused_node_stands_still_and_goes_on() {
    let lab = Lab::up("pause", 1);
    let count = "i=0; while :; do i=$((i+1)); echo $i >/run/count; sleep 0.01; done";
    let mut counter = lab.command(&["exec", "n1", "--", "bash", "-c", count]).spawn().unwrap();
    soon("counting", || lab.shell("n1", "cat /run/count").1.parse::<u64>().is_ok_and(|count| count > 3));
    lab.done(&["pause", "n1"]);
    assert_eq!(lab.state("n1"), "paused");
    lab.refused(&["pause", "n1"], "lab-node-paused");
    lab.refused(&["exec", "n1", "--", "true"], "lab-node-paused");
    let seen = std::fs::read_to_string(inside(&lab, "/run/count")).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(std::fs::read_to_string(inside(&lab, "/run/count")).unwrap(), seen);
    lab.done(&["resume", "n1"]);
    soon("going on", || std::fs::read_to_string(inside(&lab, "/run/count")).unwrap() != seen);
    lab.done(&["pause", "n1"]);
    lab.done(&["kill", "n1"]);
    lab.done(&["start", "n1"]);
    assert_eq!(lab.state("n1"), "running", "a power cut ends a pause");
    counter.wait().unwrap();
}

/// A path of node n1 as seen from outside.
fn inside(lab: &Lab, path: &str) -> PathBuf {
    let state: serde_json::Value =
        serde_json::from_slice(&std::fs::read(lab.dir.join(&lab.name).join("lab.json")).unwrap()).unwrap();
    format!("/proc/{}/root{path}", state["nodes"][0]["init"]).into()
}

#[test]
fn down_leaves_nothing_behind() {
    let lab = Lab::up("down", 2);
    lab.refused(&lab.up_args(2), "lab-is-up");
    // Processes, mounts and loop devices that a node made itself go with the node.
    let busy = "cd /var/lib/mainstay; truncate -s 400M inner.img; mkfs.xfs -q inner.img; mkdir -p /srv/inner; \
                mount -o loop inner.img /srv/inner; setsid sleep 1000 </dev/null >/srv/inner/log 2>&1 &";
    assert_eq!(lab.shell("n1", busy).0, Some(0));
    let mut client = background(&lab, &["exec", "client", "--", "sleep", "1000"]);
    lab.done(&["kill", "n2"]);
    assert!(!lab.traces().is_empty());
    lab.done(&["down"]);
    client.wait().unwrap();
    assert_eq!(lab.traces(), BTreeSet::new());
    assert!(!lab.dir.exists());
    lab.refused(&["down"], "lab-unknown");
    lab.refused(&["status"], "lab-unknown");
}

fn background(lab: &Lab, args: &[&str]) -> Child {
    let child = lab.command(args).stdout(Stdio::null()).spawn().unwrap();
    let group = format!("mainstay-lab-{}/client", lab.name);
    let file = format!("/proc/{}/cgroup", child.id());
    soon("entering the lab", || std::fs::read_to_string(&file).is_ok_and(|text| text.contains(&group)));
    child
}

#[test]
fn an_interrupted_up_cleans_up() {
    // At different points of its work, so that the interrupt hits different steps.
    for delay_ms in [5, 40, 150, 300] {
        let lab = Lab::plan("ctrl-c");
        // A terminal's Ctrl-C reaches the whole foreground group.
        let up = lab.command(&lab.up_args(12)).process_group(0).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms));
        let group = nix::unistd::Pid::from_raw(up.id().cast_signed());
        nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGINT).unwrap();
        let output = up.wait_with_output().unwrap();
        assert!(!output.status.success(), "interrupted after {delay_ms} ms");
        assert_eq!(lab.traces(), BTreeSet::new(), "interrupted after {delay_ms} ms");
    }
}

#[test]
fn remains_of_a_lab_that_died_are_named_and_removed() {
    let lab = Lab::plan("remains");
    let mut up = lab.command(&lab.up_args(4)).stdout(Stdio::null()).spawn().unwrap();
    soon("the first disk", || lab.dir.join(&lab.name).join("n2").exists());
    up.kill().unwrap();
    up.wait().unwrap();
    lab.refused(&lab.up_args(4), "lab-remains");
    lab.done(&["down"]);
    assert_eq!(lab.traces(), BTreeSet::new());
    lab.done(&lab.up_args(1));
    // Also without the state file everything is found by its name.
    std::fs::remove_dir_all(&lab.dir).unwrap();
    lab.refused(&lab.up_args(1), "lab-remains");
    lab.done(&["down"]);
    assert_eq!(lab.traces(), BTreeSet::new());
}

#[test]
fn a_node_whose_first_process_died_is_seen_and_started_again() {
    let lab = Lab::up("died", 1);
    let state = std::fs::read(lab.dir.join(&lab.name).join("lab.json")).unwrap();
    let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
    let init = i32::try_from(state["nodes"][0]["init"].as_i64().unwrap()).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(init), nix::sys::signal::Signal::SIGKILL).unwrap();
    soon("the end of the node", || lab.state("n1") == "died");
    lab.done(&["start", "n1"]);
    assert_eq!(lab.state("n1"), "running");
}

#[test]
fn foreign_directories_are_left_alone() {
    let lab = Lab::plan("foreign");
    let mine = lab.dir.join(&lab.name).join("letters");
    std::fs::create_dir_all(&mine).unwrap();
    lab.refused(&lab.up_args(1), "lab-dir-foreign");
    lab.refused(&["down"], "lab-dir-foreign");
    assert!(mine.exists());
}
