//! QEMU's storage daemon, and how its NBD server becomes a device where the kernel has no NBD
//! client.

use crate::bench::FIRST;
use crate::bench::ready::{Held, Program, Ready};
use crate::lab::Lab;
use crate::{local, wait_for};
use anyhow::Result;
use std::time::Duration;

pub const PROGRAMS: &[(&str, &str)] =
    &[("qemu-storage-daemon", "qemu-system-common"), ("nbdfuse", "libnbd-bin")];
const LIMIT: Duration = Duration::from_secs(20);
/// Socket of the daemon on the first node; `/run` is the node's own.
const SOCKET: &str = "/run/storage-daemon.sock";

/// Returns the program of the daemon. The environment can name another one than Debian's.
#[must_use]
pub fn program() -> String {
    std::env::var("QEMU_STORAGE_DAEMON").unwrap_or_else(|_| "qemu-storage-daemon".into())
}

/// Starts the daemon on a node with these `--blockdev`s and the exports of these nodes, and waits
/// for its server.
///
/// # Errors
/// When the server does not appear.
pub fn serve(
    lab: &Lab,
    node: &str,
    server: &str,
    blockdevs: &[String],
    exports: &[&str],
    ready: &str,
) -> Result<Program> {
    let mut words = vec![program()];
    for blockdev in blockdevs {
        words.extend(["--blockdev".into(), blockdev.clone()]);
    }
    words.extend(["--nbd-server".into(), server.into()]);
    for export in exports {
        words.extend([
            "--export".into(),
            format!("type=nbd,id=e-{export},node-name={export},name={export},writable=on"),
        ]);
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let child = lab.spawn(node, &words, &format!("storage-daemon-{node}.log"))?;
    let program = Program(child);
    wait_for(&format!("the storage daemon on {node}"), LIMIT, || lab.shell(node, ready))?;
    Ok(program)
}

/// Starts the daemon on the first node, and has it export a node of it as this file, over FUSE.
///
/// # Errors
/// When the file does not appear.
pub fn export_fuse(lab: &Lab, blockdev: &str, name: &str, file: &str) -> Result<Program> {
    lab.shell(FIRST, &format!("touch {file}"))?;
    let export = format!("type=fuse,id=f-{name},node-name={name},mountpoint={file},writable=on");
    let words = [&program(), "--blockdev", blockdev, "--export", &export];
    let program = Program(lab.spawn(FIRST, &words, &format!("storage-daemon-{name}.log"))?);
    wait_for("the export over FUSE", LIMIT, || lab.shell(FIRST, &format!("test -s {file}")))?;
    Ok(program)
}

/// Starts the daemon on the first node, with a server on a socket of that node.
///
/// # Errors
/// When the server does not appear.
pub fn serve_locally(lab: &Lab, blockdevs: &[String], exports: &[&str]) -> Result<Program> {
    let server = format!("addr.type=unix,addr.path={SOCKET}");
    let first = exports.first().copied().unwrap_or_default();
    let ready = format!("nbdinfo --size '{}'", uri(first));
    serve(lab, FIRST, &server, blockdevs, exports, &ready)
}

/// Where a client on the first node finds an export.
#[must_use]
pub fn uri(export: &str) -> String {
    format!("nbd+unix:///{export}?socket={SOCKET}")
}

/// Makes an export of the local server a file, a loop device on it, a file system on that, and
/// mounts it.
///
/// Debian 12's daemon has an export of its own over FUSE, but it corrupts data under concurrent
/// writes (a database did not start on it, and fio's checksums fail), so libnbd's is used.
///
/// # Errors
/// When one of the programs fails.
pub fn file_system(lab: &Lab, ready: &mut Ready<'_>, export: &str, root: &str) -> Result<()> {
    let file = format!("/run/nbd-{export}/disk");
    lab.shell(FIRST, &format!("mkdir -p /run/nbd-{export}"))?;
    let child = lab.spawn(FIRST, &["nbdfuse", &file, &uri(export)], &format!("nbdfuse-{export}.log"))?;
    ready.hold(Held::Program(Program(child)));
    wait_for("nbdfuse", LIMIT, || lab.shell(FIRST, &format!("test -s {file}")))?;
    local::file_system_on(lab, FIRST, &file, root)
}
