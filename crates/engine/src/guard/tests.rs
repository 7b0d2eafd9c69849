use super::silencing::populated;
use super::*;
use mainstay_api::engine::{GuardAddress, GuardEntry};
use mainstay_silence::guard_acts_at;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::mpsc;

fn entry(address: &str) -> GuardEntry {
    GuardEntry {
        resource: ResourceId(1),
        cgroups: vec![],
        addresses: vec![GuardAddress { interface: "lo".into(), address: address.into() }],
        mounts: vec![],
        devices: vec![],
    }
}

#[test]
fn entries_are_checked() {
    for bad in ["10.0.0.1", "10.0.0.1/33", "x/24", "::1/129", "10.0.0.1/"] {
        assert_eq!(GuardTarget::try_from(&entry(bad)), Err(GuardError::Address(bad.into())));
    }
    let target = GuardTarget::try_from(&entry("fd00::7/64")).expect("well formed");
    assert_eq!(target.addresses, ["fd00::7".parse::<IpAddr>().expect("an address")]);
    let relative = GuardEntry { cgroups: vec!["x/y".into()], ..GuardEntry::default() };
    assert_eq!(GuardTarget::try_from(&relative), Err(GuardError::Path("x/y".into())));
}

fn told_by(tell: mpsc::Sender<Silenced>) -> impl FnMut(GuardNotice) + Send + 'static {
    move |told| match told {
        GuardNotice::Silenced(silenced) => tell.send(silenced).expect("heard"),
        other => panic!("no test has asked for {other:?}"),
    }
}

#[test]
fn the_guard_acts_once_before_the_end_of_a_lease_and_again_after_a_renewal() {
    let (tell, told) = mpsc::channel();
    let guard = Guard::start(told_by(tell)).expect("a guard");
    assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "no lease, no end of it");
    for _ in 0..2 {
        let until = now().plus_ms(1_500);
        let before = guard.silenced();
        assert_eq!(guard.set_lease(until).expect("taken"), before);
        assert!(!guard.fenced() && guard.lease_until() == until);
        assert!(told.recv_timeout(Duration::from_millis(200)).is_err(), "not yet");
        let silenced = told.recv_timeout(Duration::from_secs(5)).expect("acted");
        assert_eq!(silenced.until, until);
        assert!(silenced.began >= guard_acts_at(until) && guard.fenced());
        assert!(guard.silenced() >= silenced.processes_gone && guard.silenced() > before);
        assert!(told.recv_timeout(Duration::from_millis(400)).is_err(), "once");
    }
    // Renewals in time keep it quiet. All of this has a second to spare: machines stand still.
    for _ in 0..5 {
        guard.set_lease(now().plus_ms(1_500)).expect("taken");
        assert!(told.recv_timeout(Duration::from_millis(100)).is_err());
    }
    // A lease that has ended already is acted upon at once.
    guard.set_lease(Time(1)).expect("taken");
    told.recv_timeout(Duration::from_secs(5)).expect("acted");
    guard
        .set_targets(vec![GuardTarget::try_from(&entry("10.213.250.9/24")).expect("well formed")])
        .expect("taken");
    told.recv_timeout(Duration::from_secs(5)).expect("what comes late is silenced too");
}

/// The whole process stood still when the lease ended, and what comes first afterwards is the
/// next lease.
#[test]
fn a_late_lease_does_not_keep_the_guard_from_acting() {
    let (tell, told) = mpsc::channel();
    let guard = Guard::start(told_by(tell)).expect("a guard");
    guard.set_lease(now().plus_ms(60_000)).expect("taken");
    // As if its thread had not run since that lease ended.
    guard.shared.state().guard.lease(now(), Time(1));
    guard.set_lease(now().plus_ms(60_000)).expect("taken");
    // It may have acted by now; then this is a lease like another.
    let acted = guard.set_lease(now().plus_ms(60_000)).expect("taken") > Time(0);
    told.recv_timeout(Duration::from_secs(5)).expect("acted");
    assert!((guard.fenced() || acted) && guard.silenced() > Time(0));
    guard.set_lease(now().plus_ms(60_000)).expect("taken");
    assert!(!guard.fenced());
    assert!(told.recv_timeout(Duration::from_millis(200)).is_err(), "once");
}

/// A guard whose lease is about to end, with a directory in the place of a cgroup.
struct Ending {
    dir: PathBuf,
    /// Answers to each attempt to remove addresses.
    answers: mpsc::Sender<Vec<String>>,
    file: LeaseFile,
    guard: Guard,
    told: mpsc::Receiver<GuardNotice>,
}

impl Ending {
    fn new(name: &str, lease: Time) -> Self {
        let dir = std::env::temp_dir().join(format!("mainstay-{name}-{}", std::process::id()));
        fs::create_dir_all(dir.join("cgroup")).expect("a directory");
        let file = LeaseFile::open(&dir).expect("a file");
        file.note_lease(lease).expect("noted");
        let (answers, asked) = mpsc::channel::<Vec<String>>();
        let addresses = AddressThread::start_with(move |_, _| asked.recv().unwrap_or_default());
        let known = GuardTarget {
            cgroups: vec![dir.join("cgroup")],
            addresses: vec![[10, 213, 250, 9].into()],
            ..GuardTarget::nothing_of(ResourceId(1))
        };
        let (tell, told) = mpsc::channel();
        let noted = LeaseFile::open(&dir).expect("the same file");
        let tell = move |what| drop(tell.send(what));
        let guard = Guard::start_with(Some(noted), vec![known], addresses.expect("a thread"), tell);
        Self { answers, file, guard: guard.expect("a guard"), told, dir }
    }

    fn silenced(&self) -> Silenced {
        match self.told.recv_timeout(Duration::from_secs(5)) {
            Ok(GuardNotice::Silenced(silenced)) => silenced,
            other => panic!("{other:?}"),
        }
    }

    fn killed(&self) -> bool {
        fs::remove_file(self.dir.join("cgroup/cgroup.kill")).is_ok()
    }

    fn silent(&self) -> Time {
        self.file.silent().expect("read")
    }

    fn wait_for(&self, what: &str, until: impl Fn(&Self) -> bool) {
        let end = now().plus_ms(10_000);
        while !until(self) {
            assert!(now() < end, "{what}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn a_kernel_that_holds_up_addresses_does_not_hold_up_the_kill_and_they_are_tried_until_they_are_gone() {
    let lease = now().plus_ms(1_000);
    let ending = Ending::new("guard-addresses", lease);
    let silenced = ending.silenced();
    assert!(silenced.failed && ending.killed(), "{silenced:?}");
    assert!(ending.file.silenced().expect("read") <= now() && ending.silent() == Time(0));
    // The list changes under the kernel's hands, twice.
    for _ in 0..2 {
        ending.answers.send(vec!["the kernel does not list its addresses".into()]).expect("asked");
    }
    ending.answers.send(vec![]).expect("asked");
    ending.wait_for("it notes that all is silent", |ending| ending.silent() > Time(0));
    assert!(!ending.killed(), "only what is left is tried again");
    assert!(ending.guard.silenced() >= ending.silent());
}

#[test]
fn nothing_is_tried_again_once_the_lease_is_renewed() {
    let ending = Ending::new("guard-renewed", now());
    ending.answers.send(vec!["the kernel does not list its addresses".into()]).expect("asked");
    assert!(ending.silenced().failed);
    ending.wait_for("it has acted", |ending| !ending.guard.shared.state().guard.acts());
    ending.guard.set_lease(now().plus_ms(60_000)).expect("taken");
    assert!(!ending.guard.fenced());
    ending.wait_for("the rest is the agent's", |ending| {
        let state = ending.guard.shared.state();
        !state.guard.acts() && state.guard.left().is_empty()
    });
    assert_eq!(ending.silent(), Time(0));
}

#[test]
fn a_silencing_during_the_start_of_the_engine_is_told() {
    let ending = Ending::new("guard-told", now().plus_ms(60_000));
    assert_eq!(ending.guard.set_lease(now().plus_ms(60_000)).expect("taken"), Time(0));
    ending.file.note_silenced(Time(7)).expect("noted");
    assert_eq!(ending.guard.silenced(), Time(7));
    assert_eq!(ending.guard.set_lease(now().plus_ms(60_000)).expect("taken"), Time(7));
}

#[test]
fn a_lease_that_ended_while_there_was_no_engine_is_acted_upon() {
    let lease = Time(now().0 - 1);
    let ending = Ending::new("guard-before", lease);
    ending.answers.send(vec![]).expect("asked");
    assert_eq!(ending.silenced().until, lease);
    assert!(ending.killed());
    ending.wait_for("it notes that all is silent", |ending| ending.silent() > Time(0));
}

#[test]
fn a_lease_that_cannot_be_noted_is_not_taken() {
    let ending = Ending::new("guard-note", now().plus_ms(60_000));
    let until = now().plus_ms(60_000);
    ending.guard.set_lease(until).expect("taken");
    let cut = fs::File::options().write(true).open(ending.dir.join("lease"));
    cut.and_then(|file| file.set_len(0)).expect("cut off");
    ending.guard.set_lease(until.plus_ms(1)).expect_err("the silencer would not know");
    assert_eq!(ending.guard.lease_until(), until);
}

#[test]
fn an_orderly_end_leaves_nothing_for_the_silencer() {
    let ending = Ending::new("guard-ends", now().plus_ms(60_000));
    ending.answers.send(vec![]).expect("asked");
    ending.guard.ender().end(Duration::from_secs(10));
    assert_eq!(ending.file.lease_until().expect("read"), Time(0));
    assert!(ending.silent() > Time(0) && ending.killed());
    ending.guard.set_lease(now().plus_ms(60_000)).expect_err("it ends");
    assert_eq!(ending.file.lease_until().expect("read"), Time(0));
}

/// A cgroup with a process in it; taken away at the end.
struct Victim {
    cgroup: PathBuf,
    process: Child,
}

impl Victim {
    fn new(name: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?.split(' ').nth(4)?;
        let cgroup = Path::new(mount).join(format!("mainstay-test-{name}-{}", std::process::id()));
        fs::create_dir(&cgroup).ok()?;
        let process = Command::new("sleep").arg("1000").spawn().expect("sleep");
        fs::write(cgroup.join("cgroup.procs"), process.id().to_string()).expect("moved");
        Some(Self { cgroup, process })
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir(&self.cgroup);
    }
}

fn ip(arguments: &[&str]) -> String {
    let output = Command::new("ip").args(arguments).output().expect("iproute2");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn users_are_killed_when_their_device_is_to_fail_and_that_is_told_afterwards() {
    let Some(mut victim) = Victim::new("users") else {
        eprintln!("skipped: needs a writable cgroup version 2 hierarchy");
        return;
    };
    let (tell, told) = mpsc::channel();
    let guard = Guard::start(move |what| tell.send(what).expect("heard"));
    let guard = guard.expect("a guard");
    assert!(guard.kill_users(ResourceId(1)), "no user is known");
    let cgroups = vec![victim.cgroup.to_str().expect("text").into()];
    let entry = GuardEntry { resource: ResourceId(1), cgroups, ..GuardEntry::default() };
    guard.set_targets(vec![GuardTarget::try_from(&entry).expect("well formed")]).expect("taken");
    assert!(guard.kill_users(ResourceId(2)), "another resource");
    assert!(populated(&victim.cgroup));
    assert!(!guard.kill_users(ResourceId(1)));
    // To set the timer anew does not make the guard forget.
    for _ in 0..100 {
        guard.set_lease(now().plus_ms(60_000)).expect("taken");
    }
    let what = told.recv_timeout(Duration::from_secs(5)).expect("told");
    assert_eq!(what, GuardNotice::Killed(ResourceId(1)));
    assert!(!victim.process.wait().expect("our child").success(), "killed");
    assert!(!guard.fenced() && guard.silenced() == Time(0), "the lease goes on");
    assert!(told.recv_timeout(Duration::from_millis(100)).is_err(), "once");
}

#[test]
fn no_process_begins_from_the_silencing_on_until_the_lease_is_renewed_and_none_on_an_engine_that_ends() {
    let dir = std::env::temp_dir().join(format!("mainstay-barred-{}", std::process::id()));
    fs::create_dir_all(&dir).expect("a directory");
    let noted = || LeaseFile::open(&dir).expect("a file");
    let is_barred = || noted().barred().expect("read") != Time(0);
    let target = GuardTarget::nothing_of(ResourceId(1));
    let (tell, told) = mpsc::channel();
    let tell = move |what| tell.send(what).expect("heard");
    let guard = Guard::start_noting(Some(noted()), Vec::new(), tell).expect("a guard");
    guard.set_lease(now().plus_ms(60_000)).expect("taken");
    assert!(!is_barred());
    // The lease ends.
    guard.set_lease(Time(1)).expect("taken");
    told.recv_timeout(Duration::from_secs(5)).expect("acted");
    assert!(is_barred());
    let renewed = now().plus_ms(60_000);
    guard.set_lease(renewed).expect("taken");
    let end = now().plus_ms(5_000);
    while is_barred() {
        assert!(now() < end, "it has a lease, and has done what it had to do");
        thread::sleep(Duration::from_millis(2));
    }
    guard.set_targets(vec![target.clone()]).expect("it guards");
    // The engine ends: a renewal lets the devices answer, and nothing begins.
    guard.ender().end(Duration::from_secs(20));
    assert!(is_barred());
    assert!(guard.set_targets(vec![target.clone(), target]).is_err());
    assert!(guard.set_lease(renewed).is_err() && is_barred());
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [GuardNotice::Ends], "it silences once");
    fs::remove_dir_all(&dir).expect("removed");
}

#[test]
fn addresses_go_first_then_processes_and_all_before_the_lease_ends() {
    // SAFETY: the thread that the test runs on gets a network of its own, which ends with it.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        eprintln!("skipped: needs the right to make a network namespace");
        return;
    }
    let Some(mut victim) = Victim::new("guard") else {
        eprintln!("skipped: needs a writable cgroup version 2 hierarchy");
        return;
    };
    ip(&["link", "add", "guarded", "type", "veth", "peer", "name", "other"]);
    ip(&["addr", "add", "10.213.250.1/24", "dev", "guarded"]);
    ip(&["addr", "add", "10.213.250.9/32", "dev", "guarded", "label", "guarded:mnst"]);
    // An administrator's, although a service has the same.
    ip(&["addr", "add", "10.213.250.8/24", "dev", "guarded"]);
    let mut entry = entry("10.213.250.9/24");
    entry.addresses[0].interface = "guarded".into();
    for address in ["10.213.250.7/24", "10.213.250.8/24", "10.213.250.77/24", "fd00:213::9/64"] {
        entry.addresses.push(GuardAddress { interface: String::new(), address: address.into() });
    }
    let directory = std::env::temp_dir().join(format!("mainstay-guard-{}", std::process::id()));
    let [mount, others] = ["own", "others"].map(|name| directory.join(name));
    for point in [&mount, &others] {
        fs::create_dir_all(point).expect("a directory");
    }
    let device = mounted_device(&directory.join("file"), &mount);
    command("mount", &["-t", "tmpfs", "others", others.to_str().expect("text")]);
    let path = |path: &Path| path.to_str().expect("text").to_owned();
    entry.mounts = vec![path(&mount), path(&others), "/no/such/mount".into()];
    entry.devices = vec![device.clone(), "/no/such/device".into()];
    entry.cgroups = vec![victim.cgroup.to_str().expect("text").into(), "/sys/fs/cgroup/no-such-group".into()];
    let (tell, told) = mpsc::channel();
    let guard = Guard::start(told_by(tell)).expect("a guard");
    guard.set_targets(vec![GuardTarget::try_from(&entry).expect("well formed")]).expect("taken");
    let until = now().plus_ms(1_000);
    guard.set_lease(until).expect("taken");
    // An interface that comes after the list, and one that gets another name.
    ip(&["link", "add", "late", "type", "veth", "peer", "name", "late-peer"]);
    ip(&["addr", "add", "10.213.250.7/32", "dev", "late", "label", "late:mnst"]);
    ip(&["link", "set", "guarded", "name", "renamed"]);
    let silenced = told.recv_timeout(Duration::from_secs(5)).expect("acted");
    assert_eq!(silenced.problems, Vec::<String>::new());
    assert!(silenced.began <= silenced.addresses_gone && silenced.addresses_gone <= silenced.processes_gone);
    assert!(silenced.processes_gone < until, "{silenced:?}");
    let left = ip(&["-o", "addr", "show"]);
    assert!(left.contains("10.213.250.1/24") && left.contains("10.213.250.8/24"), "{left}");
    assert!(!left.contains("10.213.250.9") && !left.contains("10.213.250.7"), "{left}");
    assert!(!populated(&victim.cgroup));
    assert!(victim.process.try_wait().expect("our child").is_some(), "killed");
    let end = now().plus_ms(5000);
    while fs::remove_dir(&mount).is_err() {
        assert!(now() < end, "the mount is detached, and its directory empty");
        thread::sleep(Duration::from_millis(5));
    }
    let stays = fs::remove_dir(&others).is_err();
    command("umount", &[&path(&others)]);
    command("losetup", &["--detach", &device]);
    fs::remove_dir_all(&directory).expect("removed");
    assert!(stays, "a mount that is not on a device of the resource is not the guard's");
}

fn command(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect("it is installed");
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A loop device on a file, with a file system that is mounted.
fn mounted_device(file: &Path, point: &Path) -> String {
    fs::File::create(file).and_then(|file| file.set_len(16 << 20)).expect("a file");
    let device = command("losetup", &["--find", "--show", file.to_str().expect("text")]);
    command("mkfs.ext4", &["-q", &device]);
    command("mount", &[&device, point.to_str().expect("text")]);
    device
}
