//! A lab whose disks are directories of the machine's file system, as benchmarks have it.

use crate::cluster::{Cluster, LIMIT};
use anyhow::{Result, ensure};
use mainstay_tests::lab::Lab;

const NODE: &str = "n1";
const RESOURCE: &str = "plain";

/// A lab of directories has no loop device of its own, keeps its writes through a power cut, and
/// leaves nothing behind.
pub fn a_lab_whose_disks_are_directories(cluster: &Cluster) -> Result<()> {
    let lab = Lab::new(&format!("{}-directories", cluster.lab.name))?;
    lab.up_with(1, &["--directories"])?;
    let ended = used(&lab);
    lab.down()?;
    ensure!(!lab.dir().exists(), "{} is still there", lab.dir().display());
    ended
}

fn used(lab: &Lab) -> Result<()> {
    lab.create_resource(RESOURCE, "64MiB", &[NODE], &["--journal", "16MiB"])?;
    let device = device(lab)?;
    lab.shell(NODE, &format!("echo kept | dd of={device} bs=4096 conv=sync oflag=direct status=none"))?;
    let images = lab.shell(NODE, "cat /sys/block/loop*/loop/backing_file 2>/dev/null || true")?;
    ensure!(!images.contains(&*lab.dir().to_string_lossy()), "{images}");
    lab.kill(NODE)?;
    lab.start(NODE)?;
    let read = format!("dd if={} bs=4096 count=1 iflag=direct status=none | head -n 1", self::device(lab)?);
    let found = lab.shell(NODE, &read)?;
    ensure!(found.trim() == "kept", "{found:?}");
    Ok(())
}

fn device(lab: &Lab) -> Result<String> {
    mainstay_tests::wait_for("a device", LIMIT, || {
        let view = lab.resource(RESOURCE)?;
        let live = view.replicas.iter().filter_map(|replica| replica.live.as_ref());
        let path = live.flat_map(|live| &live.devices).map(|device| device.path.clone()).next();
        path.ok_or_else(|| anyhow::anyhow!("none yet"))
    })
}
