//! Tests of mounts, on loop devices.

use super::super::freeze::FreezeWatch;
use super::super::make::tests::Known;
use super::*;
use crate::service::unmounted::unmount;
use std::process::Command;

#[test]
fn options_are_split_into_flags_and_data() {
    let (flags, data) = parse_options("xfs", "noatime, nodev,logbsize=256k");
    assert_eq!(flags, MsFlags::MS_NOATIME | MsFlags::MS_NODEV);
    assert_eq!(data, "logbsize=256k,nouuid");
    assert!(is_read_only("ro,noatime") && !is_read_only("errors=remount-ro"));
}

/// A loop device with an ext4 on it; gone when dropped.
struct Device {
    directory: tempfile::TempDir,
    device: PathBuf,
}

fn run(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output().expect("the program is installed");
    assert!(output.status.success(), "{program} {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

impl Device {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("file");
        File::create(&file).and_then(|file| file.set_len(64 << 20)).expect("a file");
        let device = run("losetup", &["--find", "--show", &file.to_string_lossy()]);
        run("mkfs.ext4", &["-q", &device]);
        std::fs::create_dir(directory.path().join("mounted")).expect("a directory");
        Self { directory, device: device.into() }
    }

    fn plan(&self) -> MountPlan {
        let path = self.directory.path().join("mounted").canonicalize().expect("it is there");
        let device = DeviceId::of(&self.device).expect("it is there");
        MountPlan {
            device: self.device.clone(),
            place: Place { path, device, read_only: false, number: None },
            fstype: "ext4".into(),
            options: String::new(),
            mkfs: None,
            hide_files: false,
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let path = self.directory.path().join("mounted");
        while umount2(&path, MntFlags::MNT_DETACH).is_ok() {}
        run("losetup", &["--detach", &self.device.to_string_lossy()]);
    }
}

fn mount_it(plan: &MountPlan) -> Result<(), MountError> {
    ensure_mounted(plan, false, &Known::default(), &|| true)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(200)
}

#[test]
fn a_foreign_mount_at_the_path_is_named_and_stays() {
    let device = Device::new();
    let plan = device.plan();
    let path = plan.place.path.to_string_lossy().into_owned();
    run("mount", &["-t", "tmpfs", "others", &path]);
    std::fs::write(plan.place.path.join("file"), "theirs").expect("written");
    let refused = mount_it(&plan).expect_err("it is not the service's").to_string();
    assert!(refused.contains("others (tmpfs)"), "{refused}");
    plan.place.ensure_unmounted(soon(), &|| true).expect("nothing of the service is there");
    plan.place.detach(Duration::ZERO).expect("nothing of the service is there");
    assert_eq!(std::fs::read_to_string(plan.place.path.join("file")).expect("it is there"), "theirs");
}

#[test]
fn a_mount_stays_while_another_mount_is_in_it_or_over_it() {
    let device = Device::new();
    let plan = device.plan();
    mount_it(&plan).expect("mounted");
    assert_eq!(plan.place.look_closely().expect("told"), AtPath::Ours);
    mount_it(&plan).expect("it is mounted already");
    let inner = plan.place.path.join("inner");
    std::fs::create_dir(&inner).expect("a directory");
    for point in [&inner, &plan.place.path] {
        run("mount", &["-t", "tmpfs", "others", &point.to_string_lossy()]);
        for result in [plan.place.detach(Duration::ZERO), plan.place.ensure_unmounted(soon(), &|| true)] {
            let why = result.expect_err("it is held").to_string();
            assert!(why.contains("others (tmpfs)"), "{why}");
        }
        unmount(&point.to_string_lossy());
    }
    plan.place.ensure_unmounted(soon(), &|| true).expect("unmounted");
    assert_eq!(plan.place.look().expect("told"), AtPath::Nothing);
}

#[test]
fn a_foreign_mount_that_appears_during_the_flush_stays() {
    let device = Device::new();
    let plan = device.plan();
    mount_it(&plan).expect("mounted");
    let path = plan.place.path.to_string_lossy().into_owned();
    let meanwhile = |_: Duration| {
        run("mount", &["-t", "tmpfs", "others", &path]);
        std::fs::write(plan.place.path.join("file"), "theirs").expect("written");
        Flushed::Whole
    };
    let ways: [&dyn Fn() -> Result<(), MountError>; 2] =
        [&|| plan.place.unmount_after(soon(), &|| true, &meanwhile), &|| {
            plan.place.detach_after(Duration::from_secs(1), &meanwhile)
        }];
    for way in ways {
        let why = way().expect_err("it is covered").to_string();
        assert!(why.contains("others (tmpfs)"), "{why}");
        assert_eq!(std::fs::read_to_string(plan.place.path.join("file")).expect("there"), "theirs");
        unmount(&path);
    }
    plan.place.ensure_unmounted(soon(), &|| true).expect("unmounted");
}

/// A volume whose file system takes its time. Another program mounts something at the place
/// meanwhile.
struct Slow<'a>(&'a str, Known);

impl Volume for Slow<'_> {
    fn is_blank(&self) -> Result<bool, String> {
        Ok(true)
    }

    fn unfinished(&self) -> Result<Option<make::Uuid>, String> {
        self.1.unfinished()
    }

    fn begin(&self, uuid: make::Uuid) -> Result<(), String> {
        self.1.begin(uuid)
    }

    fn finish(&self) -> Result<(), String> {
        run("mount", &["-t", "tmpfs", "others", self.0]);
        self.1.finish()
    }
}

#[test]
fn a_foreign_mount_that_appears_while_a_file_system_is_made_is_not_covered() {
    let device = Device::new();
    let plan = MountPlan { mkfs: Some(Vec::new()), ..device.plan() };
    run("wipefs", &["--all", &device.device.to_string_lossy()]);
    let path = plan.place.path.to_string_lossy().into_owned();
    let made = ensure_mounted(&plan, false, &Slow(&path, Known::default()), &|| true);
    assert!(matches!(&made, Err(MountError::Occupied { why, .. }) if why.contains("others")), "{made:?}");
    unmount(&path);
}

/// An administrator repairs it there while the service is halted.
#[test]
fn a_mount_by_hand_at_the_place_of_a_service_is_a_user_and_the_service_s_own_is_none() {
    use super::super::instance::{Disregarded, Neighbours, Places, users_of};
    let device = Device::new();
    let plan = device.plan();
    let places = Places {
        cgroup_root: device.directory.path().join("cgroups"),
        state_dir: device.directory.path().join("state"),
        run_dir: device.directory.path().join("run"),
        journal_dir: None,
        neighbours: Neighbours::default(),
        hindrances: Default::default(),
        disregarded: Disregarded::default(),
        mount_lanes: super::super::left_mounts::MountLanes::default(),
        log_writer: Vec::new(),
        hooks: None,
    };
    let (links, notes) = (places.run_dir.join("dev/db"), places.run_dir.join("services"));
    std::fs::create_dir_all(&links).and_then(|()| std::fs::create_dir_all(&notes)).expect("made");
    std::os::unix::fs::symlink(&device.device, links.join("0")).expect("made");
    let path = plan.place.path.to_string_lossy().into_owned();
    let text = format!("name='s'\nresource='db'\n[mount]\npath='{path}'\n");
    let spec = mainstay_ha::ServiceSpec::parse(&text).expect("it is one");
    let note = |mode: &str, mounted: Option<&Place>| {
        let note = serde_json::json!({
            "resource": 1, "revision": 1, "spec": &spec, "running": {}, "mounted": mounted,
            "saved": { "mode": mode, "epoch": 1, "round": 0, "spent_epoch": null, "failures": [],
                "reason": "", "next_ticket": 1 },
        });
        std::fs::write(notes.join("s.json"), note.to_string()).expect("written");
    };
    run("mount", &[&device.device.to_string_lossy(), &path]);
    let users = || users_of(&places, "db", Some(&spec), &[]).expect("it is known");
    let named = [format!("a mount at {path}")];
    assert_eq!(users(), named, "no agent has noted anything");
    note("stopped", None);
    assert_eq!(users(), named, "the service is halted");
    note("stopped", Some(&plan.place));
    assert_eq!(users(), named, "the service was stopped without it");
    note("running", Some(&plan.place));
    assert_eq!(users(), [""; 0], "the service has mounted it");
    // A service cannot be moved without them: they are named before it is stopped.
    let (inner, file) = (plan.place.path.join("inner"), plan.place.path.join("file"));
    std::fs::create_dir(&inner).and_then(|()| std::fs::write(&file, "")).expect("made");
    for (more, over) in [(&["-t", "tmpfs", "others"][..], &inner), (&["--bind", "/etc/hosts"], &file)] {
        let over = over.to_string_lossy();
        run("mount", &[more, &[&*over]].concat());
        let found = users();
        unmount(&over);
        assert!(found.iter().any(|user| user.ends_with(&format!("at {over}"))), "{found:?}");
    }
    run("mount", &["-t", "tmpfs", "others", &path]);
    let found = users();
    unmount(&path);
    assert_eq!(found, [format!("another mount: others (tmpfs) at {path}")]);
}

#[test]
fn the_holder_of_a_busy_mount_is_named_and_detaching_it_loses_nothing() {
    let device = Device::new();
    let plan = device.plan();
    mount_it(&plan).expect("mounted");
    std::fs::write(plan.place.path.join("file"), "written").expect("written");
    let mut holder =
        Command::new("sleep").arg("60").current_dir(&plan.place.path).spawn().expect("sleep is there");
    let refused = plan.place.ensure_unmounted(soon(), &|| true).expect_err("it is busy").to_string();
    let named = format!("sleep (process {}) with its working directory there", holder.id());
    assert!(refused.contains(&named), "{refused}");
    plan.place.detach(Duration::from_secs(20)).expect("detached");
    // The file system that another node would find on its replica at this moment.
    let image = device.directory.path().join("image");
    std::fs::copy(device.directory.path().join("file"), &image).expect("copied");
    // As the next mount does: data that is only in the journal is replayed.
    let replayed = Command::new("e2fsck").arg("-p").arg(&image).output().expect("it is installed");
    assert!(replayed.status.code().is_some_and(|code| code <= 1), "{replayed:?}");
    let found = run("debugfs", &["-R", "cat /file", &image.to_string_lossy()]);
    holder.kill().and_then(|()| holder.wait()).expect("it ends");
    assert_eq!(found, "written");
}

#[test]
fn files_are_hidden_only_if_that_is_wanted() {
    let device = Device::new();
    let mut plan = device.plan();
    std::fs::write(plan.place.path.join("notes"), "theirs").expect("written");
    let refused = mount_it(&plan).expect_err("it would hide them").to_string();
    assert!(refused.contains("notes"), "{refused}");
    plan.hide_files = true;
    mount_it(&plan).expect("mounted");
}

#[test]
fn a_frozen_file_system_is_known_as_such() {
    let device = Device::new();
    let plan = device.plan();
    mount_it(&plan).expect("mounted");
    assert!(!plan.place.is_frozen());
    let mut watch = FreezeWatch::new(plan.place.path.clone());
    let mut seen = |wanted: bool| {
        let until = Instant::now() + Duration::from_secs(20);
        while watch.is_frozen() != wanted && Instant::now() < until {
            std::thread::sleep(BUSY_PAUSE);
        }
        watch.is_frozen() == wanted
    };
    assert!(seen(false));
    run("fsfreeze", &["--freeze", &plan.place.path.to_string_lossy()]);
    let (frozen, watched) = (plan.place.is_frozen(), seen(true));
    let stays = [plan.place.ensure_unmounted(soon(), &|| true), plan.place.detach(Duration::from_secs(1))];
    run("fsfreeze", &["--unfreeze", &plan.place.path.to_string_lossy()]);
    assert!(frozen && watched && seen(false));
    for refused in stays {
        assert!(matches!(refused, Err(MountError::Frozen { .. })), "{refused:?}");
    }
    plan.place.ensure_unmounted(soon(), &|| true).expect("it is thawed");
}

#[test]
fn nothing_is_mounted_under_processes_that_run() {
    let device = Device::new();
    let plan = device.plan();
    let refused = ensure_mounted(&plan, true, &Known::default(), &|| true);
    assert!(matches!(refused, Err(MountError::Occupied { .. })), "{refused:?}");
    assert_eq!(plan.place.look().expect("told"), AtPath::Nothing);
}
