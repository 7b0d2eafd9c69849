//! Mounts and file systems of services.

use super::Trouble;
use anyhow::{Result, ensure};
use mainstay_tests::command::Finished;
use mainstay_tests::lab::Lab;
use mainstay_tests::wait_for;
use std::time::Duration;

use crate::cluster::{LIMIT, NODES};

pub const TROUBLES: &[(&str, Trouble)] = &[
    ("troubles_a_device_in_use_is_not_taken_away", a_device_in_use_is_not_taken_away),
    ("troubles_a_mount_finds_its_place_or_is_refused", a_mount_finds_its_place_or_is_refused),
    ("troubles_a_foreign_mount_keeps_no_service_down", a_foreign_mount_keeps_no_service_down),
    ("troubles_a_mount_that_vanished_is_made_anew", a_mount_that_vanished_is_made_anew),
    ("troubles_a_move_waits_for_holders_and_loses_nothing", a_move_waits_for_holders_and_loses_nothing),
    ("troubles_a_service_leaves_a_dead_file_system", a_service_leaves_a_dead_file_system),
    ("troubles_only_a_blank_volume_is_formatted", only_a_blank_volume_is_formatted),
];

/// A service on the resource of the same name, with a file system there and a process that stays.
fn service(name: &str, path: &str, more: &str) -> String {
    format!(
        "name = \"{name}\"\nresource = \"{name}\"\n[mount]\npath = \"{path}\"\nfstype = \"ext4\"\nmkfs = true\n{more}\n\
         [[process]]\nname = \"p\"\ncommand = [\"sh\", \"-c\", \"echo $$ >{path}/begun; exec sleep 1000\"]\n\
         stop_timeout_s = 5\n"
    )
}

fn apply(lab: &Lab, name: &str, toml: &str, more: &[&str]) -> Result<Finished> {
    let file = lab.dir().join(format!("{name}.toml"));
    std::fs::write(&file, toml)?;
    let file = file.to_string_lossy().into_owned();
    lab.try_cli(&[&["service", "apply", file.as_str()][..], more].concat())
}

/// Checks that the command was refused and gave these words as the reason.
fn refused(finished: &Finished, words: &[&str]) -> Result<()> {
    ensure!(finished.code() != 0, "it is not refused: {finished:?}");
    for word in words {
        ensure!(finished.stderr.contains(word), "'{word}' is not said: {}", finished.stderr);
    }
    Ok(())
}

fn create(lab: &Lab, name: &str) -> Result<()> {
    lab.create_resource(name, "64MiB", &NODES, &["--journal", "16MiB"])
}

fn remove(lab: &Lab, name: &str) -> Result<()> {
    lab.cli(&["service", "delete", name])?;
    lab.cli(&["resource", "delete", name, "--yes"])?;
    wait_for("the links to its devices to go", LIMIT, || {
        on_all(lab, &format!("test ! -e /run/mainstay/dev/{name}/0"))
    })
}

fn on_all(lab: &Lab, script: &str) -> Result<()> {
    NODES.into_iter().try_for_each(|node| lab.shell(node, script).map(drop))
}

fn other_than(node: &str) -> &'static str {
    NODES.into_iter().find(|other| *other != node).expect("there are three nodes")
}

/// A process on a node that holds a directory, file or device open, until it is dropped.
struct Holder<'a> {
    lab: &'a Lab,
    node: String,
    pid: String,
}

impl<'a> Holder<'a> {
    /// `script` is run by a shell that then sleeps.
    fn new(lab: &'a Lab, node: &str, script: &str) -> Result<Self> {
        let held = format!("({script}; exec sleep 1000) >/dev/null 2>&1 & echo $!");
        let pid = lab.shell(node, &held)?.trim().to_owned();
        let comm = format!("cat /proc/{pid}/comm");
        wait_for("the holder", LIMIT, || {
            ensure!(lab.shell(node, &comm)?.trim() == "sleep", "not yet");
            Ok(())
        })?;
        Ok(Self { lab, node: node.to_owned(), pid })
    }

    fn named(&self) -> String {
        format!("sleep (process {})", self.pid)
    }
}

impl Drop for Holder<'_> {
    fn drop(&mut self) {
        drop(self.lab.shell(&self.node, &format!("kill {} 2>/dev/null || true", self.pid)));
    }
}

/// An operator's own file system on the device stays whole: no command changes the device under it,
/// or takes the device away.
fn a_device_in_use_is_not_taken_away(lab: &Lab) -> Result<()> {
    const NAME: &str = "in-use";
    const POINT: &str = "/srv/in-use";
    create(lab, NAME)?;
    let node = lab.primary(NAME)?;
    let device = format!("/run/mainstay/dev/{NAME}/0");
    lab.shell(&node, &format!("mkfs.ext4 -q {device} && mkdir -p {POINT} && mount {device} {POINT}"))?;
    lab.cli(&["snapshot", "create", NAME, "before"])?;
    lab.shell(&node, &format!("echo kept >{POINT}/file && sync {POINT}/file"))?;
    let verbs: [&[&str]; 5] = [
        &["snapshot", "rollback", NAME, "before"],
        &["resource", "delete", NAME, "--yes"],
        &["resource", "remove-replica", NAME, &node],
        &["node", "drain", &node],
        &["resource", "force-promote", NAME, other_than(&node), "--accept-loss"],
    ];
    for verb in &verbs[..4] {
        refused(&lab.try_cli(verb)?, &["device-in-use", &node, POINT])?;
    }
    refused(&lab.try_cli(verbs[4])?, &[])?;
    let unasked = lab.try_cli(&["resource", "delete", NAME])?;
    ensure!(unasked.code() == 2, "without a terminal it needs --yes: {unasked:?}");
    let kept =
        lab.shell(&node, &format!("cat {POINT}/file && umount {POINT} && fsck.ext4 -fn {device} >&2"))?;
    ensure!(kept.trim() == "kept", "{kept}");
    // A program has the device open, without a mount.
    let holder = Holder::new(lab, &node, &format!("exec 3<{device}"))?;
    refused(&lab.try_cli(verbs[1])?, &["device-in-use", &holder.named()])?;
    drop(holder);
    // The lab's devices are made of files. A program that has such a file open is seen too.
    let file = format!("/run/mainstay/fuse/{NAME}/0");
    let holder = Holder::new(lab, &node, &format!("exec 3<{file}"))?;
    refused(&lab.try_cli(verbs[1])?, &["device-in-use", &holder.named(), &file])?;
    drop(holder);
    let mode = lab.shell(&node, "stat -c %a:%u /run/mainstay/fuse")?;
    ensure!(mode.trim() == "700:0", "others than root may come to these files: {mode}");
    lab.cli(verbs[0])?;
    lab.cli(verbs[1])?;
    lab.shell(&node, &format!("rmdir {POINT}")).map(drop)
}

/// A path that the system, Mainstay, another service or another program uses is refused by name,
/// and its content stays.
fn a_mount_finds_its_place_or_is_refused(lab: &Lab) -> Result<()> {
    const ONE: &str = "place-one";
    const TWO: &str = "place-two";
    let [one, two] = [ONE, TWO].map(|name| format!("/srv/{name}"));
    create(lab, ONE)?;
    create(lab, TWO)?;
    let link = "/srv/place-link";
    on_all(
        lab,
        &format!("mkdir -p {one} {two}.full && ln -sfn {one} {link} && echo theirs >{two}.full/notes"),
    )?;
    let at_once = format!("{}[policy]\nrestart_limit = 0\n", service(ONE, &one, ""));
    let start = apply(lab, ONE, &at_once, &[])?;
    ensure!(start.code() == 0, "{start:?}");
    let node = lab.wait_running(ONE, LIMIT)?;
    for path in ["/usr", "/etc", "/proc/1", "/run/mainstay", "/var/lib/mainstay/pool", "/srv"] {
        refused(&apply(lab, TWO, &service(TWO, path, ""), &[])?, &["mount.path"])?;
    }
    for path in [one.clone(), format!("{one}/inner"), format!("{link}/inner"), format!("{two}.full")] {
        refused(&apply(lab, TWO, &service(TWO, &path, ""), &[])?, &["mount.path", "what to do"])?;
    }
    let hidden = apply(lab, TWO, &service(TWO, &format!("{two}.full"), "hide_files = true"), &[])?;
    ensure!(hidden.code() == 0, "{hidden:?}");
    lab.cli(&["service", "delete", TWO])?;
    let notes = lab.shell("n1", &format!("cat {two}.full/notes"))?;
    ensure!(notes.trim() == "theirs", "{notes}");

    // Another file system is mounted there before the service comes.
    let other = other_than(&node);
    lab.shell(other, &format!("mount -t tmpfs others {one} && echo theirs >{one}/notes"))?;
    let moved = lab.try_cli(&["service", "move", ONE, "--to", other])?;
    refused(&moved, &["mount.path", "others (tmpfs)"])?;
    ensure!(lab.wait_running(ONE, LIMIT)? == node, "it goes on where it was");
    lab.restart_agent(other)?;
    wait_for("the service where its place is free", LIMIT, || {
        let runs = lab.wait_running(ONE, Duration::from_secs(1))?;
        ensure!(runs != other, "it runs on {runs}");
        Ok(())
    })?;
    let notes = lab.shell(other, &format!("cat {one}/notes && umount {one}"))?;
    ensure!(notes.trim() == "theirs", "{notes}");
    remove(lab, ONE)?;
    lab.cli(&["resource", "delete", TWO, "--yes"])?;
    on_all(lab, &format!("rm -r {two}.full {link} && rmdir {one}"))
}

/// A mount that an administrator has made in or over a file system is named and stays, and the
/// service goes on elsewhere.
fn a_foreign_mount_keeps_no_service_down(lab: &Lab) -> Result<()> {
    const NAME: &str = "crowded";
    let path = format!("/srv/{NAME}");
    create(lab, NAME)?;
    let applied = apply(lab, NAME, &service(NAME, &path, ""), &[])?;
    ensure!(applied.code() == 0, "{applied:?}");
    let (sub, file) = (format!("{path}/sub"), format!("{path}/f"));
    let in_it = format!("mkdir -p {sub} && mount -t tmpfs others {sub}");
    let node = lab.wait_running(NAME, LIMIT)?;
    lab.shell(&node, &in_it)?;
    refused(&lab.try_cli(&["service", "delete", NAME])?, &["device-in-use", &sub, "--force"])?;
    lab.shell(&node, &format!("umount {sub}"))?;
    let mounts = [
        (&sub, in_it, "the engine dies"),
        (&file, format!("touch {file} && mount --bind /etc/hosts {file}"), "it is moved"),
        (&path, format!("mount -t tmpfs others {path}"), "it has lost its file system"),
    ];
    for (point, mount, why) in mounts {
        let node = lab.wait_running(NAME, LIMIT)?;
        lab.shell(&node, &mount)?;
        let go = ["service", "move", NAME, "--to", other_than(&node)];
        if *point != path {
            refused(&lab.try_cli(&go)?, &["device-in-use", point, "--force"])?;
            ensure!(lab.wait_running(NAME, LIMIT)? == node, "it goes on where it was");
        }
        match why {
            "the engine dies" => lab.kill_program(&node, "engine")?,
            "it is moved" => lab.cli(&[&go[..], &["--force"]].concat()).map(drop)?,
            _ => {}
        }
        wait_for("the service elsewhere", LIMIT, || {
            let runs = lab.wait_running(NAME, Duration::from_secs(1))?;
            ensure!(runs != node, "it runs on {runs}");
            Ok(())
        })?;
        let back = ["service", "move", NAME, "--to", &node];
        refused(&lab.try_cli(&back)?, &["mount.path", point])?;
        lab.shell(&node, &format!("umount {point}"))?;
        wait_for("the mount that was left to go", LIMIT, || {
            let left = lab.shell(&node, &format!("grep -c ' {path}' /proc/self/mountinfo || true"))?;
            ensure!(left.trim() == "0", "{left} mounts are left");
            Ok(())
        })?;
    }
    let events = lab.cli(&["events"])?;
    ensure!(events.contains("does not wait for its mount"), "{events}");
    remove(lab, NAME)?;
    on_all(lab, &format!("rmdir {path} 2>/dev/null || true"))
}

/// A process never writes where its file system is not.
fn a_mount_that_vanished_is_made_anew(lab: &Lab) -> Result<()> {
    const NAME: &str = "vanished";
    let path = format!("/srv/{NAME}");
    create(lab, NAME)?;
    let applied = apply(lab, NAME, &service(NAME, &path, ""), &[])?;
    ensure!(applied.code() == 0, "{applied:?}");
    let node = lab.wait_running(NAME, LIMIT)?;
    let begun = || lab.shell(&node, &format!("findmnt -n -o FSTYPE {path} && cat {path}/begun"));
    let before = begun()?;
    for with_agent in [true, false] {
        // The process alone would be started again at once.
        let kill = if with_agent { "" } else { "; kill -9 $(cat /run/vanished.pid)" };
        lab.shell(&node, &format!("cat {path}/begun >/run/vanished.pid; umount -l {path}{kill}"))?;
        wait_for("the service on its file system", LIMIT, || {
            lab.wait_running(NAME, Duration::from_secs(1))?;
            let now = begun()?;
            ensure!(now.starts_with("ext4") && now != before, "{now}");
            Ok(())
        })?;
    }
    remove(lab, NAME)?;
    let below = lab.shell(&node, &format!("ls -A {path}"))?;
    ensure!(below.trim().is_empty(), "a process has written to the node's own directory: {below}");
    lab.shell(&node, &format!("rm -f /run/vanished.pid; rmdir {path}")).map(drop)
}

/// The path leads through a link, another program holds the mount, and nothing was flushed.
fn a_move_waits_for_holders_and_loses_nothing(lab: &Lab) -> Result<()> {
    const NAME: &str = "held";
    let (real, link) = (format!("/srv/{NAME}.real"), format!("/srv/{NAME}.link"));
    on_all(lab, &format!("mkdir -p {real} && ln -sfn {real} {link}"))?;
    let path = format!("{link}/db");
    create(lab, NAME)?;
    let applied = apply(lab, NAME, &service(NAME, &path, ""), &[])?;
    ensure!(applied.code() == 0, "{applied:?}");
    let node = lab.wait_running(NAME, LIMIT)?;
    let other = other_than(&node);
    let write = "head -c 4M /dev/urandom";
    let sum = lab.shell(&node, &format!("{write} >{path}/file && sha256sum <{path}/file"))?;
    let go = ["service", "move", NAME, "--to", other];
    let namespace = "exec unshare -m --propagation private sh -c 'cd /; exec sleep 1000'";
    for script in [format!("cd {path}"), format!("exec 3<{path}/file"), namespace.to_owned()] {
        let holder = Holder::new(lab, &node, &script)?;
        refused(&lab.try_cli(&go)?, &["device-in-use", &holder.named(), "--force"])?;
        refused(&lab.try_cli(&["node", "drain", &node])?, &["device-in-use", &holder.named(), "--force"])?;
        ensure!(lab.wait_running(NAME, LIMIT)? == node, "it goes on where it was");
    }
    lab.shell(&node, &format!("fsfreeze --freeze {path}"))?;
    let frozen = lab.try_cli(&go);
    lab.shell(&node, &format!("fsfreeze --unfreeze {path}"))?;
    refused(&frozen?, &["fsfreeze --unfreeze", &format!("{real}/db")])?;

    let holder = Holder::new(lab, &node, &format!("cd {path}"))?;
    lab.cli(&[&go[..], &["--force"]].concat())?;
    ensure!(lab.wait_running(NAME, LIMIT)? == other);
    let there = lab.shell(other, &format!("sha256sum <{path}/file"))?;
    ensure!(there == sum, "what was written before the move is not there");
    drop(holder);
    for node in NODES.into_iter().filter(|node| *node != other) {
        let left = lab.shell(node, &format!("grep -c '{NAME}.* ext4 ' /proc/self/mountinfo || true"))?;
        ensure!(left.trim() == "0", "{left} mounts are left on {node}");
    }
    // The service comes back, with no process in the way, and no mounts pile up.
    lab.cli(&["service", "move", NAME, "--to", &node])?;
    let mounts = lab.shell(&node, &format!("grep -c '{NAME}.* ext4 ' /proc/self/mountinfo"))?;
    ensure!(mounts.trim() == "1", "{mounts} mounts");
    // Neither a deletion nor a restart takes the mount away from a process that uses it, unless the
    // operator forces it.
    let holder = Holder::new(lab, &node, &format!("cd {path}"))?;
    let changed = service(NAME, &path, "options = \"noatime\"");
    refused(&apply(lab, NAME, &changed, &[])?, &["device-in-use", &holder.named(), "--force"])?;
    refused(&lab.try_cli(&["service", "delete", NAME])?, &["device-in-use", &holder.named(), "--force"])?;
    ensure!(lab.wait_running(NAME, LIMIT)? == node, "it goes on where it was");
    let applied = apply(lab, NAME, &changed, &["--force"])?;
    ensure!(applied.code() == 0, "{applied:?}");
    lab.cli(&["service", "delete", NAME, "--force"])?;
    drop(holder);
    lab.cli(&["resource", "delete", NAME, "--yes"])?;
    on_all(lab, &format!("rm -r {real} {link}"))
}

/// A service whose file system has died goes to another node at once. It is not started again and
/// again where it cannot write.
fn a_service_leaves_a_dead_file_system(lab: &Lab) -> Result<()> {
    const NAME: &str = "dying";
    let path = format!("/srv/{NAME}");
    lab.create_resource(NAME, "320MiB", &NODES, &["--journal", "64MiB"])?;
    let toml = service(NAME, &path, "").replace("ext4", "xfs").replace(
        "exec sleep 1000",
        &format!(
            "while dd if=/dev/zero of={path}/file bs=4k count=1 conv=fsync status=none; do sleep 0.1; done"
        ),
    );
    // One process writes and ends; the other one sleeps and notices nothing.
    for toml in [toml, service(NAME, &path, "").replace("ext4", "xfs")] {
        let applied = apply(lab, NAME, &toml, &[])?;
        ensure!(applied.code() == 0, "{applied:?}");
        let node = lab.wait_running(NAME, LIMIT)?;
        lab.shell(&node, &format!("xfs_io -x -c shutdown {path}"))?;
        wait_for("the service on another node", LIMIT, || {
            let runs = lab.wait_running(NAME, Duration::from_secs(1))?;
            ensure!(runs != node, "it still runs on {runs}");
            Ok(())
        })?;
        let failures = lab.service(NAME)?.failures;
        let here: Vec<_> = failures.iter().filter(|failure| failure.node == node).collect();
        ensure!(here.iter().all(|failure| failure.count <= 2), "{failures:?}");
    }
    remove(lab, NAME)?;
    on_all(lab, &format!("rmdir {path} 2>/dev/null || true"))
}

/// An interrupted attempt to format is repeated. A volume that was written to is never formatted.
fn only_a_blank_volume_is_formatted(lab: &Lab) -> Result<()> {
    const NAME: &str = "blank";
    const OTHER: &str = "not-blank";
    let path = format!("/srv/{NAME}");
    lab.create_resource(NAME, "320MiB", &NODES, &["--journal", "64MiB"])?;
    let toml = service(NAME, &path, "").replace("ext4", "xfs");
    for ms in [0, 20, 60, 120, 200] {
        let applied = apply(lab, NAME, &toml, &["--no-wait"])?;
        ensure!(applied.code() == 0, "{applied:?}");
        std::thread::sleep(Duration::from_millis(ms));
        lab.cli(&["service", "delete", NAME])?;
    }
    let applied = apply(lab, NAME, &toml, &[])?;
    ensure!(applied.code() == 0, "{applied:?}");
    lab.wait_running(NAME, LIMIT)?;
    remove(lab, NAME)?;

    create(lab, OTHER)?;
    let node = lab.primary(OTHER)?;
    let device = format!("/run/mainstay/dev/{OTHER}/0");
    lab.shell(
        &node,
        &format!("echo rows | dd of={device} bs=1M seek=20 conv=sync,notrunc oflag=direct status=none"),
    )?;
    let toml = service(OTHER, &path, "");
    let applied = apply(lab, OTHER, &toml, &["--no-wait"])?;
    ensure!(applied.code() == 0, "{applied:?}");
    wait_for("a reason", LIMIT, || {
        let said = lab.cli(&["service", "status", OTHER])?;
        ensure!(said.contains("it was written to before, so it is not formatted"), "{said}");
        Ok(())
    })?;
    lab.cli(&["service", "delete", OTHER])?;
    let node = lab.primary(OTHER)?;
    let rows = lab.shell(&node, &format!("dd if={device} bs=1M skip=20 count=1 status=none | head -c 4"))?;
    ensure!(rows == "rows", "{rows:?}");
    lab.cli(&["resource", "delete", OTHER, "--yes"])?;
    on_all(lab, &format!("rmdir {path} 2>/dev/null || true"))
}
