//! Ceph RBD: a monitor, a manager and three OSDs, one on each node, pool of size 3.

use super::storage_daemon as daemon;
use crate::bench::ready::{DATABASE_MIB, Held, Needs, Program, Ready};
use crate::bench::{ADDRESSES, FIRST, NODES};
use crate::lab::Lab;
use crate::local::{self, DISK};
use crate::wait_for;
use anyhow::{Context, Result, ensure};
use mainstay_bench::fio::Target;
use std::time::Duration;

pub const PROGRAMS: &[(&str, &str)] = &[
    ("ceph-mon", "ceph-mon"),
    ("ceph-mgr", "ceph-mgr"),
    ("ceph-osd", "ceph-osd"),
    ("rbd", "ceph-common"),
    ("qemu-storage-daemon", "qemu-system-common"),
    ("nbdfuse", "libnbd-bin"),
];
const POOL: &str = "bench";
const FSID: &str = "5f1d7c0a-9b1e-4c56-8d3b-6d61696e7374";
const DATABASE_PORT: u16 = 3321;
/// Monitors, managers and OSDs take their time.
const LIMIT: Duration = Duration::from_secs(120);
/// Space of each OSD beyond its images, for its own database and log.
const OSD_SPARE_MIB: u64 = 3072;

pub fn start(lab: &Lab, needs: Needs) -> Result<Ready<'_>> {
    let text = "Ceph: monitor and manager on n1, an OSD on each node (bluestore on a fully written file of the node's disk), no \
                authentication, pool of size 3 and min_size 2, 32 placement groups, images with layering only, rbd_cache off. fio \
                is the client of librbd itself; the database is on XFS on a loop device over nbdfuse over QEMU's rbd driver";
    let mut ready = Ready::new(lab, "ceph", text, needs);
    let conf = lab.dir().join("ceph.conf");
    std::fs::write(&conf, config()).with_context(|| conf.display().to_string())?;
    let ceph = Ceph { lab, conf: conf.to_string_lossy().into_owned() };
    ceph.monitor(&mut ready)?;
    let images = needs.mib * u64::from(needs.fio) + DATABASE_MIB * u64::from(needs.database);
    for (number, node) in NODES.iter().enumerate() {
        ceph.osd(&mut ready, number, node, images + OSD_SPARE_MIB)?;
    }
    ceph.pool()?;
    if needs.fio {
        ceph.image("fio", needs.mib)?;
        ready.fio_front(&["env", &format!("CEPH_CONF={}", ceph.conf)]);
        ready.write_to(Target::Rbd { pool: POOL.into(), image: "fio".into() })?;
    }
    if needs.database {
        ceph.image("db", DATABASE_MIB)?;
        let device =
            format!("driver=rbd,node-name=db,pool={POOL},image=db,conf={},cache.direct=on", ceph.conf);
        ready.hold(Held::Program(daemon::serve_locally(lab, &[device], &["db"])?));
        let root = format!("{DISK}/ceph-db");
        daemon::file_system(lab, &mut ready, "db", &root)?;
        ready.serve_from(&root, DATABASE_PORT)?;
    }
    Ok(ready)
}

/// Everything that a daemon writes is on its node's disk or in its node's memory.
fn config() -> String {
    format!(
        "[global]
fsid = {FSID}
mon host = [v2:{mon}:3300,v1:{mon}:6789]
mon initial members = {FIRST}
public network = 10.213.0.0/24
ms bind ipv6 = false
auth cluster required = none
auth service required = none
auth client required = none
keyring = /dev/null
run dir = /run/ceph
admin socket = /run/ceph/$name.$pid.asok
pid file = /run/ceph/$name.pid
crash dir = /run/ceph/crash
log file = {DISK}/ceph/$name.log
mon cluster log file = {DISK}/ceph/cluster.log
mon data = {DISK}/ceph/mon
mgr data = {DISK}/ceph/mgr
osd data = {DISK}/ceph/osd
osd memory target = 1073741824
osd objectstore = bluestore
bluestore block create = false
osd pool default size = 3
osd pool default min size = 2
osd pool default pg autoscale mode = off
mon data avail warn = 1
mon data avail crit = 1
rbd cache = false
",
        mon = ADDRESSES[0]
    )
}

struct Ceph<'a> {
    lab: &'a Lab,
    conf: String,
}

impl<'a> Ceph<'a> {
    /// A script with the configuration in `$C`; daemons find directories of their own.
    fn shell(&self, node: &str, script: &str) -> Result<String> {
        let front = format!("C='--conf {}'\nmkdir -p /run/ceph/crash {DISK}/ceph\n", self.conf);
        self.lab.shell(node, &(front + script))
    }

    fn ask(&self, words: &str) -> Result<String> {
        self.shell(FIRST, &format!("timeout 30 ceph $C {words}"))
    }

    fn daemon(&self, ready: &mut Ready<'a>, node: &str, words: &[&str]) -> Result<()> {
        let words = [words, &["--foreground", "--conf", &self.conf]].concat();
        let child = self.lab.spawn(node, &words, &format!("{}-{node}.log", words[0]))?;
        ready.hold(Held::Program(Program(child)));
        Ok(())
    }

    fn monitor(&self, ready: &mut Ready<'a>) -> Result<()> {
        let map = format!(
            "mkdir -p {DISK}/ceph/mon {DISK}/ceph/mgr
             monmaptool --create --fsid {FSID} --addv {FIRST} '[v2:{mon}:3300,v1:{mon}:6789]' {DISK}/ceph/monmap >/dev/null
             ceph-authtool --create-keyring {DISK}/ceph/keyring --gen-key --name=mon. --cap mon 'allow *' >/dev/null
             ceph-mon $C --mkfs --id {FIRST} --monmap {DISK}/ceph/monmap --keyring {DISK}/ceph/keyring",
            mon = ADDRESSES[0]
        );
        self.shell(FIRST, &map).context("make the monitor")?;
        self.daemon(ready, FIRST, &["ceph-mon", "--id", FIRST])?;
        wait_for("Ceph's monitor", LIMIT, || self.ask("status"))?;
        self.daemon(ready, FIRST, &["ceph-mgr", "--id", FIRST])
    }

    fn osd(&self, ready: &mut Ready<'a>, number: usize, node: &str, mib: u64) -> Result<()> {
        let data = format!("{DISK}/ceph/osd");
        local::image(self.lab, node, &format!("{data}/block"), mib)?;
        let uuid = format!("5f1d7c0a-9b1e-4c56-8d3b-00000000000{number}");
        let given = self.ask(&format!("osd new {uuid}"))?;
        ensure!(given.trim() == number.to_string(), "the monitor numbered the OSD {given}");
        let id = number.to_string();
        let mkfs = format!("ceph-osd $C --id {id} --mkfs --osd-uuid {uuid}");
        self.shell(node, &mkfs).with_context(|| format!("make the OSD on {node}"))?;
        self.daemon(ready, node, &["ceph-osd", "--id", &id])
    }

    fn pool(&self) -> Result<()> {
        wait_for("three OSDs", LIMIT, || {
            let said = self.ask("osd stat")?;
            ensure!(said.contains("3 up") && said.contains("3 in"), "{said}");
            Ok(())
        })?;
        self.ask(&format!("osd pool create {POOL} 32"))?;
        wait_for("clean placement groups", LIMIT, || {
            let said = self.ask("pg stat")?;
            ensure!(said.contains("32 active+clean;") || said.contains("33 active+clean;"), "{said}");
            Ok(())
        })
    }

    fn image(&self, name: &str, mib: u64) -> Result<()> {
        let words = format!("rbd $C create --size {mib} --image-feature layering {POOL}/{name}");
        self.shell(FIRST, &words).with_context(|| format!("make the image {name}")).map(drop)
    }
}
