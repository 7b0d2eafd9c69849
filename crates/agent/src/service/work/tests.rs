use super::file_system::SEARCH;
use super::*;
use crate::service::cgroup;
use crate::service::command::{self, ProcessError, ProcessPlan};
use crate::service::footing::Footing;
use crate::service::instance::{Disregarded, Instance};
use crate::service::lane::CALLED_OFF;
use crate::service::left_mounts;
use crate::service::make::Volume;
use crate::service::mount;
use crate::service::mount_table::{DeviceId, MountTable};
use crate::service::place;
use crate::threads::spawn;
use mainstay_api::engine;
use mainstay_types::Time;
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::channel;
use std::time::Instant;

const POLL: Duration = Duration::from_millis(50);

struct NoVolumes;

impl Volumes for NoVolumes {
    fn volume(&self, _: ResourceId, _: u16) -> Box<dyn Volume> {
        unreachable!("the service has no file system")
    }
}

pub(super) fn made(dir: &Path, spec: &ServiceSpec, dirs: ServiceDirs) -> Work {
    let places = Places {
        cgroup_root: dir.join("cgroups"),
        state_dir: dir.join("state"),
        run_dir: dir.join("run"),
        journal_dir: None,
        neighbours: Neighbours::default(),
        hindrances: Default::default(),
        disregarded: Disregarded::default(),
        mount_lanes: left_mounts::MountLanes::default(),
        log_writer: Vec::new(),
        hooks: None,
    };
    let (file, left) = (dir.join("s.json"), (BTreeMap::new(), None));
    let about = (1, 1, ResourceId(1));
    Work::new(spec.clone(), about, dirs, &places, Arc::new(NoVolumes), file, left)
}

fn work(dir: &Path) -> Work {
    // No program listens on this port of this address.
    let spec = ServiceSpec::parse(
        "name='s'\nresource='db'\n[[process]]\nname='p'\ncommand=['/bin/true']\nready={tcp='127.254.254.254:9'}\n",
    );
    let dirs = ServiceDirs { cgroup: dir.join("cgroup"), logs: dir.join("logs"), log_writer: Vec::new() };
    made(dir, &spec.unwrap(), dirs)
}

/// A work with a file system in memory at a path of its own, which counts as on its device;
/// gone when dropped.
struct OnMount {
    dir: tempfile::TempDir,
    work: Arc<Work>,
    place: Place,
}

impl OnMount {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap().join("above/mounted");
        std::fs::create_dir_all(&path).unwrap();
        let spec = format!(
            "name='s'\nresource='db'\n[mount]\npath='{}'\n[[process]]\nname='p'\ncommand=['/bin/true']\nready={{tcp='127.254.254.254:9'}}\n",
            path.display()
        );
        let dirs = ServiceDirs {
            cgroup: dir.path().join("cgroup"),
            logs: dir.path().join("logs"),
            log_writer: Vec::new(),
        };
        let work = Arc::new(made(dir.path(), &ServiceSpec::parse(&spec).unwrap(), dirs));
        cover(&path);
        let device = DeviceId::from_number(std::fs::metadata(&path).unwrap().dev());
        let place = Place { path, device, read_only: false, number: None };
        work.note(place.clone()).unwrap();
        Self { dir, work, place }
    }
}

impl Drop for OnMount {
    fn drop(&mut self) {
        while uncover(&self.place.path) {}
    }
}

fn cover(path: &Path) {
    let no = None::<&str>;
    nix::mount::mount(Some("others"), path, Some("tmpfs"), nix::mount::MsFlags::empty(), no).unwrap();
}

fn uncover(path: &Path) -> bool {
    nix::mount::umount2(path, nix::mount::MntFlags::MNT_DETACH).is_ok()
}

#[test]
fn a_mount_that_is_lost_is_told_again_until_it_is_taken_away() {
    let on = OnMount::new();
    let (told, tells) = channel();
    let on_done: OnDone = Arc::new(move |done: Done| told.send(done.event).unwrap_or_default());
    on.work.watch(on.work.mount.number(), &on_done);
    cover(&on.place.path);
    for _ in 0..2 {
        let event = tells.recv_timeout(Duration::from_secs(20)).expect("it is told");
        assert!(matches!(event, Event::Lost { step: Step::Mount, .. }), "{event:?}");
    }
    drop(on_done);
    on.work.mount.number();
    while tells.recv_timeout(Duration::from_secs(20)).is_ok() {}
    assert_eq!(tells.try_recv().unwrap_err(), std::sync::mpsc::TryRecvError::Disconnected, "it has ended");
}

/// The silencer kills while the engine stands still, so the notes are all that tells of it.
#[test]
fn a_process_that_the_silencer_killed_is_told_as_silenced_and_not_as_ended_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let work = work(dir.path());
    let running = Note::of(&"the process");
    lock(&work.running).insert(0, running.clone());
    let (told, tells) = channel();
    let on_done: OnDone = Arc::new(move |done: Done| told.send(done.event).unwrap_or_default());
    let ended = || {
        work.ended(0, &running, "signal: 9 (SIGKILL)".to_owned().into(), &on_done);
        tells.try_iter().collect::<Vec<_>>()
    };
    let exited = |event: &Event| matches!(event, Event::ProcessExited { process: 0, .. });
    let notes = |silenced: u64, barred: u64| {
        let mut notes = vec![0; 4096];
        notes[engine::SILENCED_AT..][..8].copy_from_slice(&silenced.to_le_bytes());
        notes[engine::STARTS_BARRED_AT..][..8].copy_from_slice(&barred.to_le_bytes());
        std::fs::create_dir_all(&work.places.run_dir).unwrap();
        std::fs::write(work.places.run_dir.join(engine::LEASE_FILE), notes).unwrap();
    };
    let alone = ended();
    assert!(matches!(&alone[..], [event] if exited(event)), "no engine was here: {alone:?}");
    notes(0, 0);
    let alone = ended();
    assert!(matches!(&alone[..], [event] if exited(event)), "nothing was silenced: {alone:?}");
    for (silenced, barred) in [(7, 0), (3, 7), (0, 7)] {
        notes(silenced, barred);
        let both = ended();
        let right = matches!(&both[..], [Event::Silenced { at: Time(7) }, event] if exited(event));
        assert!(right, "{both:?}");
    }
}

#[test]
fn a_mount_that_cannot_go_stays_noted() {
    let on = OnMount::new();
    let inner = on.place.path.join("inner");
    std::fs::create_dir(&inner).unwrap();
    cover(&inner);
    let next = Place { path: on.dir.path().join("next"), ..on.place.clone() };
    let why = on.work.note(next.clone()).expect_err("another mount is in it");
    assert!(why.contains("inner"), "{why}");
    assert_eq!(*lock(&on.work.mounted), Some(on.place.clone()));
    assert!(uncover(&inner));
    assert_eq!(on.work.note(next.clone()), Ok(()));
    assert_eq!(*lock(&on.work.mounted), Some(next));
}

#[test]
fn a_mount_with_another_in_or_over_it_is_left_and_named_once_its_time_or_lease_is_over() {
    let on = OnMount::new();
    let inner = on.place.path.join("inner");
    std::fs::create_dir(&inner).unwrap();
    let undo = |force| {
        let patience = SEARCH + Duration::from_millis(200);
        on.work.undo(Step::Mount, Some(on.work.mount.number()), force, patience)
    };
    for (point, killed) in [(&inner, false), (&on.place.path, true)] {
        cover(point);
        on.work.lease_ended(killed);
        assert!(undo(false).is_err_and(|why| why.contains("unmount that first")), "it may go by itself");
        assert_eq!(undo(true), Ok(()));
        let left = on.work.left().expect("it is told");
        assert!(left.contains(&format!("others (tmpfs) at {}", point.display())), "{left}");
        assert_eq!((undo(true), on.work.left()), (Ok(()), None), "it is told once");
        assert_eq!(*lock(&on.work.mounted), Some(on.place.clone()), "it is still noted");
        assert!(uncover(point));
    }
    assert_eq!((undo(true), on.place.look().unwrap()), (Ok(()), mainstay_ha::AtPath::Nothing));
}

#[test]
fn a_left_mount_is_removed_once_the_other_mount_has_gone_unless_used_again() {
    let on = OnMount::new();
    let inner = on.place.path.join("inner");
    std::fs::create_dir(&inner).unwrap();
    cover(&inner);
    let number = on.work.mount.number();
    assert_eq!(on.work.undo(Step::Mount, Some(number), true, KILL_PATIENCE), Ok(()));
    on.work.forget();
    let places = &on.work.places;
    left_mounts::tidy(places, "s", number);
    std::thread::sleep(WATCH + POLL * 4);
    assert!(matches!(on.place.look().unwrap(), mainstay_ha::AtPath::Holds(_)), "the other one is there");
    assert!(uncover(&inner));
    let began = Instant::now();
    while left_mounts::of(places, "s").is_some() && began.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(POLL);
    }
    assert_eq!(
        (on.place.look().unwrap(), left_mounts::of(places, "s")),
        (mainstay_ha::AtPath::Nothing, None)
    );

    let again = OnMount::new();
    let places = &again.work.places;
    left_mounts::note(places, "s", &again.place);
    // The agent starts anew, and the service comes again.
    left_mounts::tidy_all(places);
    places.mount_lanes.of("s").number();
    std::thread::sleep(WATCH * 2);
    assert_eq!(again.place.look().unwrap(), mainstay_ha::AtPath::Ours);
}

/// An operator has told the stop to wait for no holder, before the stop or while it waits.
#[test]
fn a_stop_waits_for_no_holder_that_an_operator_disregards() {
    for before in [true, false] {
        let on = OnMount::new();
        let mut holder =
            std::process::Command::new("sleep").arg("60").current_dir(&on.place.path).spawn().unwrap();
        let (began, disregarded) = (Instant::now(), on.work.places.disregarded.clone());
        if before {
            disregarded.set("s");
        } else {
            spawn("test", move || {
                std::thread::sleep(POLL * 10);
                disregarded.set("s");
            });
        }
        let number = on.work.mount.number();
        let undone = on.work.undo(Step::Mount, Some(number), false, Duration::from_secs(60));
        let took = began.elapsed();
        holder.kill().and_then(|()| holder.wait()).unwrap();
        assert_eq!((undone, on.place.look().unwrap()), (Ok(()), mainstay_ha::AtPath::Nothing));
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
}

#[test]
fn an_undo_of_a_mount_that_was_moved_elsewhere_is_no_success() {
    let on = OnMount::new();
    let (above, moved) = (on.dir.path().join("above"), on.dir.path().join("moved"));
    std::fs::rename(&above, &moved).unwrap();
    let undo = || {
        on.work.undo(Step::Mount, Some(on.work.mount.number()), false, SEARCH + Duration::from_millis(200))
    };
    let undone = undo();
    std::fs::rename(&moved, &above).unwrap();
    assert!(undone.as_ref().is_err_and(|why| why.contains("moved/mounted now")), "{undone:?}");
    assert_eq!(undo(), Ok(()));
    assert_eq!(on.place.look().unwrap(), mainstay_ha::AtPath::Nothing);
}

/// The maker waits for its turn. The mount that it needs goes meanwhile.
#[test]
fn a_process_whose_mount_went_before_its_turn_does_not_begin() {
    let on = OnMount::new();
    let (entered, inside) = channel();
    let (release, released) = channel::<()>();
    let work = on.work.clone();
    let undoing = work.processes.number();
    let other = work.clone();
    let undo = std::thread::spawn(move || {
        other.processes.undo(undoing, Haste::AtOnce, Duration::from_secs(20), || {
            let _ = entered.send(());
            let _ = released.recv();
            Ok(())
        })
    });
    inside.recv().unwrap();
    let number = work.processes.number();
    let maker = std::thread::spawn(move || {
        let ignored: OnDone = Arc::new(|_| ());
        work.run(Step::StartProcess { process: 0 }, Some(number), &ignored)
    });
    // Longer than it takes to look at the mount.
    std::thread::sleep(POLL * 4);
    assert!(uncover(&on.place.path));
    drop(release);
    assert_eq!(undo.join().unwrap(), Ok(()));
    let began = maker.join().unwrap();
    assert!(began.as_ref().is_err_and(|why| why.contains("not mounted any more")), "{began:?}");
}

#[test]
fn a_readiness_test_does_not_wait_for_a_device() {
    let on = OnMount::new();
    let Ok(fuse) = std::fs::File::options().read(true).write(true).open("/dev/fuse") else {
        return eprintln!("skipped: no FUSE here");
    };
    let path = on.dir.path().canonicalize().unwrap().join("hangs");
    std::fs::create_dir(&path).unwrap();
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", std::os::fd::AsRawFd::as_raw_fd(&fuse));
    let flags = nix::mount::MsFlags::empty();
    // Its server answers nothing.
    nix::mount::mount(Some("test"), &path, Some("fuse"), flags, Some(&*data)).unwrap();
    let table = MountTable::read().unwrap();
    let device = table.at(&path).expect("it is mounted").device();
    on.work.note(Place { path: path.clone(), device, ..on.place.clone() }).unwrap();
    let ignored: OnDone = Arc::new(|_| ());
    let began = Instant::now();
    for _ in 0..10 {
        assert_eq!(on.work.stands(Step::CheckReady { process: 0 }, &ignored), Ok(()));
    }
    let took = began.elapsed();
    drop(fuse);
    assert!(uncover(&path));
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn a_service_whose_place_hangs_keeps_neither_its_maker_nor_the_guard_waiting() {
    let Ok(fuse) = std::fs::File::options().read(true).write(true).open("/dev/fuse") else {
        return eprintln!("skipped: no FUSE here");
    };
    let dir = tempfile::tempdir().unwrap();
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", std::os::fd::AsRawFd::as_raw_fd(&fuse));
    let flags = nix::mount::MsFlags::empty();
    // Its server answers nothing.
    nix::mount::mount(Some("test"), dir.path(), Some("fuse"), flags, Some(&*data)).unwrap();
    let path = dir.path().join("db");
    let spec = format!("name='s'\nresource='db'\n[mount]\npath='{}'\n", path.display());
    let spec = ServiceSpec::parse(&spec).unwrap();
    let places = Places {
        cgroup_root: dir.path().join("cgroups"),
        state_dir: dir.path().join("state"),
        run_dir: dir.path().join("run"),
        journal_dir: None,
        neighbours: Neighbours::default(),
        hindrances: Default::default(),
        disregarded: Disregarded::default(),
        mount_lanes: left_mounts::MountLanes::default(),
        log_writer: Vec::new(),
        hooks: None,
    };
    let (answer, answers) = channel();
    let asked = path.clone();
    spawn("test", move || {
        let volumes: Arc<dyn Volumes> = Arc::new(NoVolumes);
        let instance = Instance::new(&spec, (1, 1), ResourceId(1), &places, &volumes, Arc::new(|_| ()));
        let _ = answer.send((instance.guard().mounts.clone(), place::resolve_soon(&asked)));
    });
    let answered = answers.recv_timeout(Duration::from_secs(5));
    drop(fuse);
    assert!(uncover(dir.path()));
    let (guarded, resolved) = answered.expect("it is answered");
    assert_eq!(guarded, [path.to_string_lossy()]);
    assert_eq!(resolved, path);
}

/// The machine does not undo a readiness test: it ends with the process that it tests.
#[test]
fn a_readiness_test_ends_with_its_process() {
    for kill in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let work = Arc::new(work(dir.path()));
        let (step, number) = (Step::CheckReady { process: 0 }, work.processes.number());
        let (ended, end) = channel();
        let tester = work.clone();
        spawn("test", move || {
            let ignored: OnDone = Arc::new(|_| ());
            drop(ended.send(tester.run(step, Some(number), &ignored)));
        });
        assert!(end.recv_timeout(POLL * 3).is_err(), "no server answers");
        let number = work.processes.number();
        if kill {
            work.kill(number).unwrap();
        } else {
            let start = Step::StartProcess { process: 0 };
            work.undo(start, Some(number), false, Duration::from_secs(1)).unwrap();
        }
        assert_eq!(end.recv_timeout(Duration::from_secs(20)).unwrap(), Err(CALLED_OFF.into()));
    }
}

#[test]
fn a_preparation_that_an_earlier_agent_left_is_ended_before_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let root = format!("mainstay-test-{}-left", std::process::id());
    let Some(root) = mount::cgroup2_mount().map(|mount| mount.join(root)) else { return };
    if std::fs::create_dir_all(&root).is_err() {
        eprintln!("skipped: no writable cgroup hierarchy of version 2 here");
        return;
    }
    let dirs = ServiceDirs { cgroup: root.join("s"), logs: dir.path().join("logs"), log_writer: Vec::new() };
    let plan = ProcessPlan {
        name: "p".into(),
        command: vec!["sleep".into(), "1000".into()],
        user: None,
        env: BTreeMap::new(),
        output: None,
    };
    let left = command::begin(&dirs, &plan, Role::Prepare, Footing::default()).unwrap();
    let spec = ServiceSpec::parse(
        "name='s'\nresource='db'\n[[process]]\nname='p'\ncommand=['/bin/true']\nprepare=['/bin/true']\n",
    );
    let cgroup = dirs.cgroup.clone();
    let work = made(dir.path(), &spec.unwrap(), dirs.clone());
    let (work, ignored): (_, OnDone) = (Arc::new(work), Arc::new(|_| ()));
    let number = work.processes.number();
    assert_eq!(work.run(Step::Prepare { process: 0 }, Some(number), &ignored), Ok(()));
    let ended = command::finish(&dirs, &plan, left, Duration::from_secs(20), &|| true);
    assert!(matches!(ended, Err(ProcessError::Failed { .. })), "{ended:?}");
    cgroup::remove(&cgroup);
    cgroup::remove(&root);
}

#[test]
fn a_process_whose_start_was_called_off_is_not_started() {
    let dir = tempfile::tempdir().unwrap();
    let work = Arc::new(work(dir.path()));
    let late = work.processes.number();
    work.kill(work.processes.number()).unwrap();
    let ignored: OnDone = Arc::new(|_| panic!("nothing was started"));
    let start = Step::StartProcess { process: 0 };
    assert_eq!(work.run(start, Some(late), &ignored), Err(CALLED_OFF.into()));
    assert!(lock(&work.running).is_empty());
}
