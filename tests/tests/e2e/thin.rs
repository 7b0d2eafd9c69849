//! Space: how much of the pools a volume takes, and how much it gives back.

use crate::cluster::{Cluster, LIMIT, NODES};
use anyhow::{Context, Result, ensure};
use mainstay_tests::wait_for;

const NAME: &str = "thin";
const MIB: u64 = 1 << 20;
/// Committed and not destaged yet, for each of writes and discards (`Tuning::destage_start_bytes`),
/// in bytes.
const LATE: u64 = 32 * MIB;

/// A file system is made, filled, emptied and trimmed. The files of all three replicas grow and
/// shrink with it, and `mainstay status` says so. The kept files are unchanged, and the replicas
/// are equal.
pub fn fstrim_shrinks_every_replica(cluster: &Cluster) -> Result<()> {
    const LARGE: u64 = 300;
    let lab = &cluster.lab;
    lab.create_resource(NAME, "768MiB", &NODES, &["--journal", "64MiB"])?;
    let (node, device) = cluster.device(NAME)?;
    for (node, bytes) in NODES.iter().zip(files(cluster)?) {
        ensure!(bytes <= MIB, "{node} holds {bytes} bytes of a volume that no client has written to");
    }

    let make = format!("mkfs.xfs -q {device}; mkdir -p /run/thin; mount {device} /run/thin");
    lab.shell(&node, &make)?;
    let random = |name: &str, mib: u64| {
        let dd = "dd if=/dev/urandom bs=1M status=none oflag=direct";
        lab.shell(&node, &format!("{dd} count={mib} of=/run/thin/{name}; sync"))
    };
    random("kept", 24)?;
    let sum = || lab.shell(&node, "echo 3 > /proc/sys/vm/drop_caches; sha256sum /run/thin/kept");
    let kept = sum()?;
    random("large", LARGE)?;
    let full = wait_for("all replicas to hold what was written", LIMIT, || {
        let files = files(cluster)?;
        ensure!(files.iter().all(|bytes| bytes + LATE >= LARGE * MIB), "{files:?}");
        Ok(files)
    })?;

    lab.shell(&node, "rm /run/thin/large; sync")?;
    let trimmed = wait_for("all replicas to give back what was trimmed", LIMIT, || {
        // XFS frees the space of a file some time after the file is gone, and it cannot be trimmed
        // before.
        lab.shell(&node, "fstrim /run/thin")?;
        let files = files(cluster)?;
        let given = |(before, now): (&u64, &u64)| before.saturating_sub(*now) + 2 * LATE >= LARGE * MIB;
        ensure!(full.iter().zip(&files).all(given), "{full:?} before, {files:?} now");
        Ok(files)
    })?;
    eprintln!("  {full:?} bytes when full, {trimmed:?} after fstrim");
    wait_for("the status to say what the files take", LIMIT, || {
        let view = lab.resource(NAME)?;
        for (replica, bytes) in view.replicas.iter().zip(files(cluster)?) {
            let said = &replica.live.as_ref().context("no answer")?.allocated;
            ensure!(*said == [bytes], "{} says {said:?}, and it is {bytes}", replica.node);
        }
        Ok(())
    })?;
    let said = lab.try_cli(&["status"])?.stdout;
    ensure!(said.contains("for 768 MiB of volumes: n1 "), "{said}");
    ensure!(sum()? == kept, "what was kept is not what it was");
    lab.shell(&node, "umount /run/thin; rmdir /run/thin")?;
    cluster.prove_equal(NAME)?;
    lab.cli(&["resource", "delete", NAME, "--yes"]).map(drop)
}

/// Returns the bytes that the file of the volume takes on each node.
fn files(cluster: &Cluster) -> Result<Vec<u64>> {
    let one = |node| {
        let stat = format!("stat -c %b /var/lib/mainstay/pools/default/{NAME}-*/vol0");
        let sectors: u64 = cluster.lab.shell(node, &stat)?.trim().parse()?;
        Ok(sectors * 512)
    };
    NODES.into_iter().map(one).collect()
}
