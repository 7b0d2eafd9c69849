//! MariaDB Galera: three nodes that certify and apply each other's transactions. sysbench talks to
//! the first.

use crate::bench::big::{self, Engine, Pages};
use crate::bench::ready::{DATABASE_MIB, Held, Needs, Ready};
use crate::bench::{ADDRESSES, NODES};
use crate::lab::Lab;
use crate::local::{self, DISK, Server};
use crate::wait_for;
use anyhow::{Result, ensure};
use std::time::Duration;

const PORT: u16 = 3323;
const PROVIDER: &str = "/usr/lib/galera/libgalera_smm.so";
/// A node joins with a copy of the first one's data.
const LIMIT: Duration = Duration::from_secs(120);
/// Beyond the data: the cache of write sets.
const CACHE_MIB: u64 = 512;

pub fn start(lab: &Lab, needs: Needs) -> Result<Ready<'_>> {
    let text = "MariaDB Galera, three nodes, wsrep_slave_threads=4, binary log off, every node as durable as the others, state \
                transfer by rsync; sysbench on the first";
    let mut ready = Ready::new(lab, "galera", text, needs);
    ensure!(std::path::Path::new(PROVIDER).exists(), "galera needs the package galera-4: make bench-deps");
    // One cluster, with the settings of the cases: those with small tables come first.
    let big = needs.big.mariadb && !needs.database;
    if !needs.database && !big {
        return Ok(ready);
    }
    let mib = if big { big::MIB } else { DATABASE_MIB };
    let root = format!("{DISK}/galera");
    let cluster = format!("--wsrep-cluster-address=gcomm://{}", ADDRESSES.join(","));
    for (number, (node, address)) in NODES.iter().zip(ADDRESSES).enumerate() {
        local::file_system(lab, node, &root, mib + CACHE_MIB)?;
        if big && number == 0 {
            big::copy(lab, node, Engine::MariaDb, &root, false)?;
        }
        let (own, name) = (format!("--wsrep-node-address={address}"), format!("--wsrep-node-name={node}"));
        let provider = format!("--wsrep-provider={PROVIDER}");
        let options = [
            "--wsrep-on=ON",
            &provider,
            &cluster,
            &own,
            &name,
            "--wsrep-sst-method=rsync",
            "--wsrep-slave-threads=4",
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
        ];
        let of_case = if big { big::options(Pages::Twice) } else { vec![] };
        let mut server = Server::prepare(lab, node, &root, PORT, &[&options[..], &of_case].concat())?;
        // The daemon that receives the copy runs as another user.
        lab.shell(node, &format!("chmod 777 {root} {root}/data"))?;
        server.launch(if number == 0 { &["--wsrep-new-cluster"] } else { &[] })?;
        wait_for(&format!("Galera on {node}"), LIMIT, || {
            let state = server.sql("SHOW STATUS LIKE 'wsrep_local_state_comment'")?;
            ensure!(state.contains("Synced"), "{state}");
            let size = server.sql("SHOW STATUS LIKE 'wsrep_cluster_size'")?;
            ensure!(size.trim().ends_with(&(number + 1).to_string()), "{size}");
            Ok(())
        })?;
        ready.hold(Held::Server(server));
    }
    let address = format!("{}:{PORT}", ADDRESSES[0]);
    if big {
        big::serve(&mut ready, Engine::MariaDb, address, Pages::Twice)?;
    } else {
        ready.serve(address)?;
    }
    Ok(ready)
}
