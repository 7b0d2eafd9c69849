//! The first process of a node. It enters the node's namespaces, mounts the node's disk, starts
//! engine and agent and restarts them when they die, as systemd does on a real machine.

use super::cli::NodeArgs;
use super::state::{Lab, RUN_DIR, STATE_DIR};
use super::{cgroup, machine, node, program, sys};
use crate::failure::{Code, Context, Outcome, exit};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A program that lived at least this long has not failed to start.
const LIVED: Duration = Duration::from_secs(10);
/// Number of quick deaths in a row that the program may have and still be restarted at once.
const DEATHS_FREE: u32 = 3;
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// How often a node without any process looks for orphans to reap.
const IDLE: Duration = Duration::from_millis(250);

/// Directories in which services and packages write. Each node has its own: its writes stay in
/// memory, and it sees the machine's files there.
const OVERLAID: [&str; 2] = ["/srv", "/var/lib"];

pub fn run(args: &NodeArgs) -> Outcome<()> {
    let lab = Lab::read(&args.lab_dir)?;
    if args.inside { inside(&lab, args) } else { enter(&lab, args) }
}

/// Enters the namespaces. The new process id namespace begins with the next process that is
/// started, which is why there are two.
fn enter(lab: &Lab, args: &NodeArgs) -> Outcome<()> {
    let doing = || format!("enter the namespaces of {}", args.node);
    sys::keep_only_standard_streams();
    if lab.systemd {
        cgroup::enter_root(lab, &args.node)?
    } else {
        cgroup::enter(lab, &args.node)?
    }
    let network = Path::new("/run/netns").join(lab.netns(&args.node));
    let network = File::open(&network).or_fail(Code::LabNode, || format!("open {}", network.display()))?;
    setns(network, CloneFlags::CLONE_NEWNET).or_fail(Code::LabNode, doing)?;
    let mut new = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWUTS;
    if lab.systemd {
        new |= CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWCGROUP;
    }
    unshare(new).or_fail(Code::LabNode, doing)?;
    let exe = std::env::current_exe().or_fail(Code::LabNode, || "find this program".into())?;
    let child = program::again(exe, "node")
        .arg("--lab-dir")
        .arg(&args.lab_dir)
        .args(["--self", &args.node])
        .arg("--disk")
        .arg(&args.disk)
        .arg("--inside")
        .spawn()
        .or_fail(Code::LabNode, || format!("start the first process of {}", args.node))?;
    println!("pid {}", child.id());
    Ok(())
}

fn inside(lab: &Lab, args: &NodeArgs) -> Outcome<()> {
    // No terminal can end the node from now on.
    nix::unistd::setsid().or_fail(Code::LabNode, || "start a session".into())?;
    if lab.systemd {
        return machine::become_systemd(lab, args);
    }
    let programs = programs(lab, &args.node)?;
    nix::unistd::sethostname(&args.node).or_fail(Code::LabNode, || "set the host name".into())?;
    mount_all(&args.disk)?;
    println!("ready");
    let null =
        File::options().write(true).open("/dev/null").or_fail(Code::LabNode, || "open /dev/null".into())?;
    nix::unistd::dup2_stdout(&null).or_fail(Code::LabNode, || "let go of standard output".into())?;
    say(&format!("{} starts", args.node));
    supervise(programs)
}

fn mount_all(disk: &Path) -> Outcome<()> {
    let nothing = None::<&str>;
    // Found before other mounts hide where it is.
    let opened = File::open(disk).or_fail(Code::LabNode, || format!("open {}", disk.display()))?;
    let directory = opened.metadata().is_ok_and(|found| found.is_dir());
    let plain = MsFlags::empty();
    let fail = |what: &str| {
        let doing = format!("mount {what}");
        move || doing
    };
    // From here on no mount gets out, and none of the machine's comes in.
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing)
        .or_fail(Code::LabNode, fail("privately"))?;
    // Copies of these mounts would keep network namespaces alive that the machine has given up.
    let _ = umount2("/run/netns", MntFlags::MNT_DETACH);
    mount(Some("tmpfs"), "/run", Some("tmpfs"), plain, Some("mode=755"))
        .or_fail(Code::LabNode, fail("/run"))?;
    mount(Some("proc"), "/proc", Some("proc"), plain, nothing).or_fail(Code::LabNode, fail("/proc"))?;
    for (number, dir) in OVERLAID.iter().enumerate() {
        let [upper, work] = ["upper", "work"].map(|part| format!("/run/.lab/{number}/{part}"));
        for dir in [&upper, &work] {
            std::fs::create_dir_all(dir).or_fail(Code::LabNode, || format!("make {dir}"))?;
        }
        let options = format!("lowerdir={dir},upperdir={upper},workdir={work}");
        mount(Some("overlay"), *dir, Some("overlay"), plain, Some(options.as_str()))
            .or_fail(Code::LabNode, fail(dir))?;
    }
    for dir in [STATE_DIR, RUN_DIR] {
        std::fs::create_dir_all(dir).or_fail(Code::LabNode, || format!("make {dir}"))?;
    }
    mount(Some("tmpfs"), RUN_DIR, Some("tmpfs"), plain, Some("mode=755"))
        .or_fail(Code::LabNode, fail(RUN_DIR))?;
    let mounted = if directory {
        let opened = format!("/proc/self/fd/{}", opened.as_raw_fd());
        mount(Some(opened.as_str()), STATE_DIR, nothing, MsFlags::MS_BIND, nothing)
    } else {
        mount(Some(disk), STATE_DIR, Some("xfs"), MsFlags::MS_NOATIME, nothing)
    };
    mounted.or_fail(Code::LabNode, fail(STATE_DIR))
}

/// A program to keep running.
struct Program {
    name: &'static str,
    path: PathBuf,
    args: Vec<String>,
    log: File,
    started: Instant,
    quick_deaths: u32,
}

fn programs(lab: &Lab, name: &str) -> Outcome<Vec<Program>> {
    if lab.plain {
        return Ok(vec![]);
    }
    let path = program::of_nodes()?;
    let own = lab.node(name)?;
    let address = &own.address;
    let group = lab.cgroup(name)?;
    let logs = node::log_dir(lab, name);
    let program = |name: &'static str, port: u16, more: &[&str]| -> Outcome<Program> {
        // Opened before the mounts change what the path means.
        let log = logs.join(format!("{name}.log"));
        let opened = OpenOptions::new().create(true).append(true).open(&log);
        let log = opened.or_fail(Code::LabNode, || format!("open {}", log.display()))?;
        let listen = format!("{address}:{port}");
        let args = [name, "--state-dir", STATE_DIR, "--run-dir", RUN_DIR, "--listen", &listen];
        let args = args.iter().chain(more).map(|&arg| arg.to_owned()).collect();
        Ok(Program { name, path: path.clone(), args, log, started: Instant::now(), quick_deaths: 0 })
    };
    let group = group.to_string_lossy();
    // A power cut of the lab takes away mounts and loop devices; ublk devices belong to no node
    // (not yet).
    let on = |port: u16| format!("{address}:{port}");
    let (metrics, routers, api) = (on(7402), on(7403), on(7404));
    let mut programs = Vec::new();
    if !own.witness {
        programs.push(program("engine", 7401, &["--device", "fuse"])?);
    }
    let ports = ["--metrics-listen", &metrics, "--router-listen", &routers, "--api-listen", &api];
    programs.push(program("agent", 7400, &[&["--cgroup-root", &*group][..], &ports].concat())?);
    Ok(programs)
}

/// Programs that run, by process id. Held locked while one is started, so that a death is never
/// seen before the process it belongs to is known.
type Running = Arc<Mutex<BTreeMap<i32, Program>>>;

fn locked(running: &Running) -> MutexGuard<'_, BTreeMap<i32, Program>> {
    // The map is whole between any two operations on it.
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

fn supervise(programs: Vec<Program>) -> ! {
    let running = Running::default();
    for program in programs {
        launch(program, &running);
    }
    loop {
        // Look first and reap under the lock: see `Running`.
        if waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).is_err() {
            std::thread::sleep(IDLE);
            continue;
        }
        let mut map = locked(&running);
        let Ok(status) = waitpid(None::<Pid>, Some(WaitPidFlag::WNOHANG)) else { continue };
        let (pid, words) = match status {
            WaitStatus::Exited(pid, code) => (pid, format!("exited with {code}")),
            WaitStatus::Signaled(pid, signal, _) => (pid, format!("was killed by {signal}")),
            _ => continue,
        };
        let Some(program) = map.remove(&pid.as_raw()) else { continue };
        drop(map);
        if matches!(status, WaitStatus::Exited(_, code) if code == i32::from(exit::STATE_LOST)) {
            say(&format!("{} {words}: it is not started again before the node's next start", program.name));
            continue;
        }
        restart(program, &words, &running);
    }
}

fn restart(mut program: Program, words: &str, running: &Running) {
    let lived = program.started.elapsed();
    program.quick_deaths = if lived < LIVED { program.quick_deaths + 1 } else { 0 };
    let pause = backoff(program.quick_deaths);
    say(&format!("{} {words} after {lived:.1?}; it is started again in {pause:?}", program.name));
    if pause.is_zero() {
        launch(program, running);
        return;
    }
    let running = Arc::clone(running);
    std::thread::spawn(move || {
        std::thread::sleep(pause);
        launch(program, &running);
    });
}

fn backoff(quick_deaths: u32) -> Duration {
    match quick_deaths.checked_sub(DEATHS_FREE + 1) {
        None => Duration::ZERO,
        Some(doublings) => BACKOFF_FIRST.saturating_mul(1 << doublings.min(16)).min(BACKOFF_MAX),
    }
}

fn launch(mut program: Program, running: &Running) {
    let mut map = locked(running);
    program.started = Instant::now();
    let child = program.log.try_clone().and_then(|log| {
        Command::new(&program.path)
            .args(&program.args)
            .env_remove("MAINSTAY_SOCKET")
            .env_remove("MAINSTAY_SERVER")
            // The configuration is of the machine that the lab runs on.
            .env("MAINSTAY_CONFIG", "/dev/null")
            .stdin(Stdio::null())
            .stdout(program.log.try_clone()?)
            .stderr(log)
            .spawn()
    });
    match child {
        Ok(child) => {
            say(&format!("{} runs as process {}", program.name, child.id()));
            map.insert(child.id().cast_signed(), program);
        }
        Err(error) => {
            drop(map);
            let running = Arc::clone(running);
            say(&format!("{} cannot be started: {error}; the next try is in {BACKOFF_MAX:?}", program.name));
            std::thread::spawn(move || {
                std::thread::sleep(BACKOFF_MAX);
                launch(program, &running);
            });
        }
    }
}

/// A line in the node's init log.
fn say(text: &str) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    eprintln!("{}.{:03} {text}", now.as_secs(), now.subsec_millis());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_deaths_cost_no_time_and_later_ones_ever_more() {
        assert_eq!((0..=3).map(backoff).max(), Some(Duration::ZERO));
        assert_eq!(backoff(4), BACKOFF_FIRST);
        assert_eq!(backoff(5), 2 * BACKOFF_FIRST);
        assert_eq!(backoff(u32::MAX), BACKOFF_MAX);
    }
}
