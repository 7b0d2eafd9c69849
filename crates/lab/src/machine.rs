//! Nodes that are whole machines: the first process is systemd, and the root is an overlay over the
//! machine's own, with its changes on the node's disk. A power cut loses what was not synced of it.
//! `machine.sh` makes the root; the tests of packages and units make theirs by it as well.

use super::cli::NodeArgs;
use super::state::{Lab, STATE_DIR};
use super::{node, program, up};
use crate::failure::{Code, Context, Failure, Outcome};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Search path that a login of Debian's root has.
pub const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Limit for systemd to start everything, on a busy machine.
const BOOTED_WITHIN: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(100);

const ROOT: &str = include_str!("machine.sh");
/// Mounts the disk and the root, and becomes systemd. The overlay and the state directory are on
/// one file system, so a power cut takes both back to what was durable.
const BOOT: &str = r#"
set -euo pipefail
PATH="$PATH:/usr/sbin:/sbin"
name=$1 disk=$2 dir=$3 state=$4 hosts=$5
root=$dir/root
mount --make-rprivate /
mkdir -p "$dir/disk" "$root"
mount -t xfs -o noatime "$disk" "$dir/disk"
mkdir -p "$dir/disk/upper" "$dir/disk/work" "$dir/disk/state"
mount -t overlay -o "lowerdir=/,upperdir=$dir/disk/upper,workdir=$dir/disk/work" overlay "$root"
if [ ! -e "$dir/disk/installed" ]; then
    fresh_root "$name" "$root"
    echo "$hosts" >>"$root/etc/hosts"
    : >"$dir/disk/installed"
    sync -f "$dir/disk"
fi
mount_root "$root"
mkdir -p "$root$state"
mount --bind "$dir/disk/state" "$root$state"
echo ready
exec >&2
start_systemd "$name" "$root"
"#;

/// Checks that this machine has what its nodes need, before anything is made.
pub fn check(package: Option<&Path>) -> Outcome<()> {
    if !Path::new("/lib/systemd/systemd").is_file() || !Path::new("/sbin/init").exists() {
        return Err(Failure::new(
            Code::LabToolMissing,
            "nodes with systemd need systemd and D-Bus, which this machine does not have",
            "apt-get install systemd systemd-sysv dbus",
        ));
    }
    if let Some(package) = package {
        File::open(package).or_fail(Code::LabState, || format!("open the package {}", package.display()))?;
    }
    Ok(())
}

/// Replaces this process, which is alone in the node's namespaces, by systemd. Says `ready` before.
pub fn become_systemd(lab: &Lab, args: &NodeArgs) -> Outcome<()> {
    let hosts: Vec<_> = lab.nodes.iter().map(|node| format!("{} {}", node.address, node.name)).collect();
    let error = Command::new("bash")
        .arg("-c")
        .arg(format!("{ROOT}{BOOT}"))
        .args(["machine", &args.node])
        .arg(&args.disk)
        .arg(directory(lab, &args.node))
        .args([STATE_DIR, &hosts.join("\n")])
        .exec();
    Err(error).or_fail(Code::LabNode, || "start bash".into())
}

/// Where a node mounts its disk and its root. Outside of the node the directory is empty.
fn directory(lab: &Lab, name: &str) -> PathBuf {
    lab.node_dir(name).join("machine")
}

/// `mainstay-lab exec` in a process of its own, because it enters the node's namespaces.
fn command(lab: &Lab, name: &str, words: &[&str]) -> Outcome<Command> {
    let exe = std::env::current_exe().or_fail(Code::LabNode, || "find this program".into())?;
    let mut command = program::again(exe, "exec");
    command.args(["--name", &lab.name, "--dir"]).arg(lab.dir.parent().unwrap_or(Path::new("/")));
    command.args([name, "--"]).args(words).stdin(Stdio::null());
    // Ctrl-C is for the command that cleans up.
    command.process_group(0);
    Ok(command)
}

/// Waits until systemd has started what is enabled. A unit that failed does not end the wait badly.
pub fn wait_booted(lab: &Lab, name: &str) -> Outcome<()> {
    let deadline = Instant::now() + BOOTED_WITHIN;
    loop {
        up::go_on()?;
        let asked = command(lab, name, &["systemctl", "is-system-running"])?.output();
        let asked = asked.or_fail(Code::LabNodeStart, || format!("ask systemd of {name}"))?;
        let state = String::from_utf8_lossy(&asked.stdout).trim().to_owned();
        if state == "running" || state == "degraded" {
            return Ok(());
        }
        if Instant::now() > deadline {
            let limit = BOOTED_WITHIN.as_secs();
            let said = String::from_utf8_lossy(&asked.stderr).trim().to_owned();
            let remedy = format!(
                "Its log is {}. Look inside: mainstay lab exec {name} --name {} -- systemctl list-jobs",
                node::log_dir(lab, name).join("init.log").display(),
                lab.name
            );
            let message = format!("systemd of {name} did not start within {limit} s: {state}{said}");
            return Err(Failure::new(Code::LabNodeStart, message, remedy));
        }
        std::thread::sleep(POLL);
    }
}

/// Installs a Debian package, durably.
pub fn install(lab: &Lab, name: &str, package: &Path) -> Outcome<()> {
    let file =
        File::open(package).or_fail(Code::LabState, || format!("open the package {}", package.display()))?;
    let script =
        "cat >/root/mainstay.deb && DEBIAN_FRONTEND=noninteractive dpkg -i /root/mainstay.deb && sync -f /";
    let done = command(lab, name, &["sh", "-c", script])?.stdin(file).output();
    let done = done.or_fail(Code::LabNode, || format!("install the package on {name}"))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    Err(Failure::new(
        Code::LabToolFailed,
        format!("{} cannot be installed on {name}: {said}", package.display()),
        "Mend what dpkg complains of, and run the command again.",
    ))
}

/// The command that shows the journal of engine and agent.
pub fn journal(lines: usize, program: Option<&str>, follow: bool) -> Vec<String> {
    let lines = lines.to_string();
    let mut words = vec!["journalctl", "--no-pager", "--output", "short-iso", "--lines", &lines];
    match program {
        Some("engine") => words.push("--unit=mainstay-engine"),
        Some("agent") => words.push("--unit=mainstay-agent"),
        Some(_) => words.push("--unit=init.scope"),
        None => words.extend(["--unit=mainstay-engine", "--unit=mainstay-agent"]),
    }
    if follow {
        words.push("--follow");
    }
    words.into_iter().map(str::to_owned).collect()
}
