//! Several volumes in one write order.

use crate::cluster::{Cluster, LIMIT, NODES};
use anyhow::{Context, Result, ensure};
use mainstay_tests::command::wait;
use mainstay_tests::lab::built;
use mainstay_tests::wait_for;
use std::time::Duration;

/// A writer writes to the two volumes of a resource in turn, as a database does with its log and
/// its tables. It makes every write durable before it begins the next one. The primary's power is
/// cut meanwhile. The next primary has the state of the writer at some moment, with every
/// acknowledged write. `MAINSTAY_E2E_ROUNDS` sets the number of rounds; the default is 3.
pub fn dependent_writes(cluster: &Cluster) -> Result<()> {
    const NAME: &str = "pair";
    let lab = &cluster.lab;
    let rounds = std::env::var("MAINSTAY_E2E_ROUNDS").map_or(Ok(3), |rounds| rounds.parse::<u64>());
    lab.create_resource(NAME, "64MiB", &NODES, &["--size", "32MiB"])?;
    let program = built("order")?.to_string_lossy().into_owned();
    let mut next = 2;
    for round in 1..=rounds.context("MAINSTAY_E2E_ROUNDS is no number")? {
        let (lost, devices) = cluster.devices(NAME)?;
        let [first, second] = &devices[..] else { anyhow::bail!("two volumes have the devices {devices:?}") };
        let begun = next.to_string();
        let mut writer =
            lab.spawn(&lost, &[program.as_str(), "write", begun.as_str(), first, second], "order.log")?;
        let acknowledged = || -> Result<Vec<u64>> {
            let log = std::fs::read_to_string(lab.dir().join("order.log"))?;
            Ok(log.lines().map_while(|line| line.parse().ok()).collect())
        };
        wait_for("writes on both volumes", LIMIT, || {
            let writes = acknowledged()?.len();
            ensure!(writes > 20, "round {round}: {writes} writes were acknowledged");
            Ok(())
        })?;
        // The power is cut at another moment of a write in each round.
        std::thread::sleep(Duration::from_millis(137 * (round % 5)));
        lab.kill(&lost)?;
        wait(&mut writer, LIMIT)?;
        let told = acknowledged()?;
        let last = told[told.len() - 1];

        let (now, devices) = wait_for("another primary", LIMIT, || {
            let (now, devices) = cluster.devices(NAME)?;
            ensure!(now != lost, "{lost} is still recorded as primary");
            Ok((now, devices))
        })?;
        let words =
            [&[program.as_str(), "read"][..], &devices.iter().map(String::as_str).collect::<Vec<_>>()];
        let read = lab.exec(&now, &words.concat())?;
        let found = read.lines().map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let newest = found.iter().copied().max().unwrap_or_default();
        let ordered =
            found.len() == 2 && found.iter().all(|&number| number + 1 >= newest) && found[0] != found[1];
        ensure!(
            ordered && (newest == last || newest == last + 1),
            "round {round}: {found:?} is found, and {last} was the last that the writer was told"
        );
        eprintln!("  round {round}: {lost} lost, {} writes, {newest} is the last", last + 1 - next);
        next = newest + 1;
        lab.start(&lost)?;
        lab.wait_in_sync(NAME, LIMIT)?;
    }
    cluster.prove_equal(NAME)?;
    lab.cli(&["resource", "delete", NAME, "--yes"]).map(drop)
}
