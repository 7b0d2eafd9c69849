//! `database_alone ROUNDS`: the end-to-end tests' database on a lab node's own disk, without
//! Mainstay, under the ledger's load. Its node loses power again and again.
//!
//! A fault here is not Mainstay's: it comes from the database, the file system or the lab's power
//! cut. Ctrl-C removes the lab. A failure leaves the lab, so that you can look at it. Needs root.

use anyhow::{Context, Result, ensure};
use mainstay_tests::interrupt;
use mainstay_tests::lab::Lab;
use mainstay_tests::local::{DISK, Server};
use mainstay_tests::now_us;
use mainstay_tests::proof::{self, Ledger};
use std::sync::Arc;
use std::time::Duration;

/// Removes what a failure has left.
const DOWN: &str = "mainstay lab --name alone down";
const NODE: &str = "n1";
const PORT: u16 = 3306;
const LIMIT: Duration = Duration::from_secs(60);
/// Time for which the database serves between two power cuts: as long as a primary does in
/// `kill_the_primary_ten_times_in_a_row`.
const SERVES: Duration = Duration::from_millis(1200);
const ROUNDS_BETWEEN_PROOFS: u32 = 10;

fn main() -> Result<()> {
    let rounds = std::env::args().nth(1).context("usage: database_alone ROUNDS")?.parse::<u32>()?;
    let lab = Arc::new(Lab::new("alone")?);
    interrupt::remove(vec![lab.clone()], DOWN)?;
    let end = cut_again_and_again(&lab, rounds);
    interrupt::give_way();
    end.with_context(|| format!("the lab is left as it is; `{DOWN}` removes it"))?;
    lab.down()?;
    println!("nothing was lost in {rounds} power cuts");
    Ok(())
}

fn cut_again_and_again(lab: &Lab, rounds: u32) -> Result<()> {
    lab.up_with(1, &["--plain"])?;
    lab.quick_keepalive()?;
    let notes = lab.dir().join("ledger.notes");
    let root = format!("{DISK}/alone");
    let address = format!("{}:{PORT}", lab.address(NODE)?);
    lab.shell(NODE, &format!("install -d -o mysql -g mysql {root}"))?;
    let ledger = Ledger::start(lab, &address, &notes, 4, 2)?;
    for round in 1..=rounds {
        let mut server = Server::prepare(lab, NODE, &root, PORT, &[])?;
        server.launch(&[])?;
        ledger.wait_commit(now_us(), LIMIT).with_context(|| format!("round {round}"))?;
        std::thread::sleep(SERVES);
        ensure!(!server.has_ended()?, "round {round}: the database has ended by itself");
        if round % ROUNDS_BETWEEN_PROOFS == 0 {
            let verdict = proof::ledger(lab, &address, &notes)?;
            ensure!(verdict.lost_rows == 0 && verdict.wrong_rows == 0, "round {round}: {verdict:?}");
            eprintln!("round {round}: {} rows acknowledged, none lost", verdict.acknowledged_rows);
        }
        lab.kill(NODE)?;
        lab.start(NODE)?;
    }
    ledger.stop()
}
