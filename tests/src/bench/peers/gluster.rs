//! GlusterFS, replica 3, a brick on each node.

use crate::bench::ready::{Held, Needs, Program, Ready};
use crate::bench::{ADDRESSES, FIRST, NODES};
use crate::lab::Lab;
use crate::local::DISK;
use crate::wait_for;
use anyhow::{Context, Result, ensure};
use mainstay_bench::fio::Target;
use std::time::Duration;

const VOLUME: &str = "bench";
const MOUNT: &str = "/srv/gluster";
const LIMIT: Duration = Duration::from_secs(60);
const PORT: u16 = 3322;

pub fn start(lab: &Lab, needs: Needs) -> Result<Ready<'_>> {
    let text = "GlusterFS replica 3, a glusterd and a brick on each node (directory of the node's disk), default options \
                (write-behind on: a write without fsync is acknowledged before it is replicated), client on n1 with \
                direct-io-mode=enable; fio on a file and the database directly on the mount";
    let mut ready = Ready::new(lab, "gluster", text, needs);
    for node in NODES {
        // Its logs stay in the node, and so does its identity, because /var/lib is the node's own.
        let script = format!(
            "mkdir -p /var/log/glusterfs {DISK}/brick
             mount -t tmpfs tmpfs /var/log/glusterfs
             mkdir -p /run/gluster /var/log/glusterfs/bricks"
        );
        lab.shell(node, &script).with_context(|| format!("prepare {node}"))?;
        let child = lab.spawn(node, &["glusterd", "--no-daemon"], &format!("glusterd-{node}.log"))?;
        ready.hold(Held::Program(Program(child)));
    }
    for node in NODES {
        wait_for("glusterd", LIMIT, || gluster(lab, node, "pool list"))?;
    }
    for address in &ADDRESSES[1..] {
        gluster(lab, FIRST, &format!("peer probe {address}"))?;
    }
    wait_for("the pool of three", LIMIT, || {
        let said = gluster(lab, FIRST, "pool list")?;
        ensure!(said.matches("Connected").count() == NODES.len(), "{said}");
        Ok(())
    })?;
    let bricks: Vec<String> =
        ADDRESSES.iter().map(|address| format!("{address}:{DISK}/brick/data")).collect();
    // Gluster needs an option to accept a brick on the file system of the machine.
    let create = format!("volume create {VOLUME} replica 3 transport tcp {} force", bricks.join(" "));
    gluster(lab, FIRST, &create)?;
    gluster(lab, FIRST, &format!("volume start {VOLUME}"))?;
    let mount = format!(
        "mkdir -p {MOUNT}
         glusterfs --volfile-server={} --volfile-id={VOLUME} --direct-io-mode=enable {MOUNT}
         mountpoint -q {MOUNT}",
        ADDRESSES[0]
    );
    wait_for("the mount", LIMIT, || lab.shell(FIRST, &mount))?;
    if needs.fio {
        let file = format!("{MOUNT}/fio.img");
        lab.shell(FIRST, &format!("truncate --size={}M {file}", needs.mib))?;
        ready.write_to(Target::Path(file.into()))?;
    }
    if needs.database {
        let root = format!("{MOUNT}/db");
        lab.shell(FIRST, &format!("mkdir -p {root}"))?;
        ready.serve_from(&root, PORT)?;
    }
    Ok(ready)
}

fn gluster(lab: &Lab, node: &str, words: &str) -> Result<String> {
    lab.shell(node, &format!("gluster --mode=script {words}"))
}
