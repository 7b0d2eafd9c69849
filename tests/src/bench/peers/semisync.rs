//! MariaDB semi-synchronous replication: a primary that waits until one of two replicas has
//! received a transaction.

use crate::bench::big::{self, Engine, Pages};
use crate::bench::ready::{DATABASE_MIB, Held, Needs, Ready};
use crate::bench::{ADDRESSES, NODES};
use crate::lab::Lab;
use crate::local::{self, DISK, Server};
use crate::mariadb::{PASSWORD, USER};
use crate::wait_for;
use anyhow::{Result, ensure};
use std::time::Duration;

const PORT: u16 = 3324;
const LIMIT: Duration = Duration::from_secs(60);
/// Beyond the data: binary and relay logs, which nothing purges during a run.
const LOGS_MIB: u64 = 4096;

pub fn start(lab: &Lab, needs: Needs) -> Result<Ready<'_>> {
    let text = "MariaDB, a primary and two replicas, binary logs with sync_binlog=1, log_slave_updates, slave_parallel_threads=4, \
                semi-synchronous with AFTER_SYNC: a commit waits for one replica's receipt, not for its disk; sysbench on \
                the primary";
    let mut ready = Ready::new(lab, "semisync", text, needs);
    // One primary, with the settings of the cases: those with small tables come first.
    let big = needs.big.mariadb && !needs.database;
    if !needs.database && !big {
        return Ok(ready);
    }
    let mib = if big { big::MIB } else { DATABASE_MIB };
    let of_case = if big { big::options(Pages::Twice) } else { vec![] };
    let root = format!("{DISK}/semisync");
    let log_bin = format!("--log-bin={root}/data/bin");
    for (number, node) in NODES.iter().enumerate() {
        local::file_system(lab, node, &root, mib + LOGS_MIB)?;
        if big {
            // The replicas begin with the same tables, and with an empty log.
            big::copy(lab, node, Engine::MariaDb, &root, false)?;
        }
        let id = format!("--server-id={}", number + 1);
        let common = [&*id, &log_bin, "--sync-binlog=1", "--log-slave-updates", "--binlog-format=ROW"];
        let role: &[&str] = if number == 0 {
            &[
                "--rpl-semi-sync-master-enabled=ON",
                "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
                "--rpl-semi-sync-master-timeout=60000",
            ]
        } else {
            &["--rpl-semi-sync-slave-enabled=ON", "--slave-parallel-threads=4"]
        };
        let mut server = Server::prepare(lab, node, &root, PORT, &[&common[..], role, &of_case].concat())?;
        server.launch(&[])?;
        wait_for(&format!("MariaDB on {node}"), LIMIT, || server.sql("SELECT 1"))?;
        if number > 0 {
            follow(&server)?;
        }
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

/// Makes a server a replica of the first one and waits until it receives.
fn follow(server: &Server<'_>) -> Result<()> {
    let primary = ADDRESSES[0];
    server.sql(&format!(
        "CHANGE MASTER TO MASTER_HOST='{primary}', MASTER_PORT={PORT}, MASTER_USER='{USER}', \
         MASTER_PASSWORD='{PASSWORD}', MASTER_USE_GTID=slave_pos; START SLAVE"
    ))?;
    wait_for("a semi-synchronous replica", LIMIT, || {
        let status = server.sql("SHOW STATUS LIKE 'Rpl_semi_sync_slave_status'")?;
        ensure!(status.contains("ON"), "{status}");
        Ok(())
    })
}
