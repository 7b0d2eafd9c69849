//! One copy through QEMU's own export over FUSE, with a loop device on it. This is the path of a
//! volume with a single copy here, in another product.
//!
//! There is no database: Debian 12's daemon (7.2) corrupts data through this export under
//! concurrent writes, so that one does not start on it. A newer daemon can be named in the
//! environment ([`daemon::program`]).

use super::storage_daemon as daemon;
use crate::bench::FIRST;
use crate::bench::ready::{Held, Needs, Ready};
use crate::lab::Lab;
use crate::local::{self, DISK, Device};
use anyhow::{Result, ensure};
use mainstay_bench::fio::Target;

const FILE: &str = "/run/qemu-fuse.img";

pub fn start(lab: &Lab, needs: Needs) -> Result<Ready<'_>> {
    ensure!(needs.fio, "qemu-fuse has no database: choose a case of fio");
    let text = "QEMU storage daemon, one copy: a local file (cache.direct=on, io_uring) exported over FUSE, a loop device with \
                direct I/O on that. No database";
    let mut ready = Ready::new(lab, "qemu-fuse", text, Needs { database: false, ..needs });
    let image = format!("{DISK}/qemu-fuse.img");
    local::image(lab, FIRST, &image, needs.mib)?;
    let blockdev = format!("driver=file,node-name=disk,filename={image},cache.direct=on,aio=io_uring");
    ready.hold(Held::Program(daemon::export_fuse(lab, &blockdev, "disk", FILE)?));
    let device = Device::attach(lab, FIRST, FILE, "qemu-fuse-device.log")?;
    ready.write_to(Target::Path(device.path.clone().into()))?;
    ready.hold(Held::Device(device));
    Ok(ready)
}
