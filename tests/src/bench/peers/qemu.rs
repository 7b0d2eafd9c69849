//! QEMU's quorum driver over a local file and two NBD servers: the simplest block replication there
//! is. It waits for all three on every write and has neither log nor resync.

use super::storage_daemon as daemon;
use crate::bench::big::{self, Engine, Pages};
use crate::bench::ready::{DATABASE_MIB, Held, Needs, Ready};
use crate::bench::{ADDRESSES, NODES};
use crate::lab::Lab;
use crate::local::{self, DISK};
use anyhow::Result;
use mainstay_bench::fio::Target;

const PORT: u16 = 10_809;
const DATABASE_PORT: u16 = 3320;
const BIG_PORT: u16 = 3330;
const POSTGRESQL_PORT: u16 = 5434;

pub fn start(lab: &Lab, needs: Needs) -> Result<Ready<'_>> {
    let text = "QEMU storage daemon: `quorum` (vote-threshold=2, read-pattern=fifo) over a local file and two NBD servers over TCP, \
                files with cache.direct=on and io_uring. fio is the NBD client itself; the database is on XFS on a loop \
                device over nbdfuse";
    let mut ready = Ready::new(lab, "qemu", text, needs);
    let big: Vec<Engine> = needs.big.engines(Pages::Twice).collect();
    let wanted = [("fio", needs.fio, needs.mib), ("db", needs.database, DATABASE_MIB)];
    let disks = wanted.into_iter().filter(|(_, wanted, _)| *wanted).map(|(name, _, mib)| (name, mib));
    let disks: Vec<_> = disks.chain(big.iter().map(|engine| (engine.name(), big::MIB))).collect();
    let names: Vec<&str> = disks.iter().map(|(name, _)| *name).collect();
    for node in NODES {
        for (name, mib) in &disks {
            local::image(lab, node, &image(name), *mib)?;
        }
    }
    for (node, address) in NODES.iter().zip(ADDRESSES).skip(1) {
        let files: Vec<String> = names.iter().map(|name| file(name, name)).collect();
        let server = format!("addr.type=inet,addr.host={address},addr.port={PORT}");
        let answers = format!("nbdinfo --size nbd://{address}:{PORT}/{}", names[0]);
        ready.hold(Held::Program(daemon::serve(lab, node, &server, &files, &names, &answers)?));
    }
    let blockdevs: Vec<String> = names.iter().flat_map(|name| quorum(name)).collect();
    ready.hold(Held::Program(daemon::serve_locally(lab, &blockdevs, &names)?));
    if needs.fio {
        ready.write_to(Target::Nbd(daemon::uri("fio")))?;
    }
    if needs.database {
        let root = format!("{DISK}/qemu");
        daemon::file_system(lab, &mut ready, "db", &root)?;
        ready.serve_from(&root, DATABASE_PORT)?;
    }
    for engine in big {
        let root = format!("{DISK}/qemu-{}", engine.name());
        daemon::file_system(lab, &mut ready, engine.name(), &root)?;
        let port = if engine == Engine::MariaDb { BIG_PORT } else { POSTGRESQL_PORT };
        // Its images were written whole when they were made.
        big::serve_from(&mut ready, engine, &root, port, Pages::Twice, false)?;
    }
    Ok(ready)
}

fn image(name: &str) -> String {
    format!("{DISK}/qemu-{name}.img")
}

fn file(node_name: &str, name: &str) -> String {
    format!("driver=file,node-name={node_name},filename={},cache.direct=on,aio=io_uring", image(name))
}

/// The block devices of the first node: `NAME` is the quorum over `NAME-1` to `NAME-3`.
fn quorum(name: &str) -> Vec<String> {
    let child = |number: usize| format!("{name}-{number}");
    let remote = |number: usize| {
        format!(
            "driver=nbd,node-name={},server.type=inet,server.host={},server.port={PORT},export={name}",
            child(number),
            ADDRESSES[number - 1]
        )
    };
    let children: Vec<String> =
        (0..3).map(|place| format!("children.{place}={}", child(place + 1))).collect();
    let whole =
        format!("driver=quorum,node-name={name},vote-threshold=2,read-pattern=fifo,{}", children.join(","));
    vec![file(&child(1), name), remote(2), remote(3), whole]
}
