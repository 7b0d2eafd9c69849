//! The cluster that all scenarios share, and the checks before and after each of them.

use anyhow::{Context, Result, ensure};
use mainstay_tests::lab::Lab;
use mainstay_tests::mariadb::Service;
use mainstay_tests::proof::{self, Ledger};
use mainstay_tests::{now_us, sysbench};
use std::path::PathBuf;
use std::time::Duration;

/// Name of the lab, unless `MAINSTAY_E2E_LAB` names another one for two runs beside each other.
const LAB: &str = "e2e";
pub const NODES: [&str; 3] = ["n1", "n2", "n3"];
pub const DB: Service<'static> = Service { name: "db", resource: "db", vip: "10.213.0.100", port: 3306 };
/// Rows that are being inserted at the same time.
pub const LEDGER_CONNECTIONS: usize = 4;
/// Longest patience with anything that should take seconds; the machine may be slow and shared.
pub const LIMIT: Duration = Duration::from_secs(90);

pub struct Cluster {
    pub lab: Lab,
    notes: PathBuf,
}

impl Cluster {
    /// The cluster in good order: all nodes up, all links whole, all replicas in sync, the database
    /// running. Makes a new lab if there is none.
    pub fn ready(held: Option<Self>) -> Result<Self> {
        let Some(cluster) = held else { return Self::make() };
        cluster.lab.wait_in_sync(DB.resource, LIMIT)?;
        cluster.lab.wait_running(DB.name, LIMIT)?;
        Ok(cluster)
    }

    fn make() -> Result<Self> {
        Self::of("", &[], &NODES)
    }

    /// A cluster in a lab whose name ends with `ending`, made with these options of `lab up`, with
    /// the database's replicas on `holders`.
    pub fn of(ending: &str, options: &[&str], holders: &[&str]) -> Result<Self> {
        let name = std::env::var("MAINSTAY_E2E_LAB").unwrap_or_else(|_| LAB.into());
        let lab = Lab::new(&format!("{name}{ending}"))?;
        lab.up_with(NODES.len() as u8, options)?;
        lab.quick_keepalive()?;
        lab.create_resource(DB.resource, "1GiB", holders, &["--journal", "64MiB"])?;
        DB.apply(&lab)?;
        lab.wait_running(DB.name, LIMIT)?;
        sysbench::prepare(&lab, &DB.address())?;
        let notes = lab.dir().join("ledger.notes");
        Ok(Self { lab, notes })
    }

    /// The newest lines of every node's logs, for a failure's message.
    pub fn logs(&self) -> String {
        let mut out = String::new();
        for node in NODES {
            out += &format!("── logs of {node}\n");
            out += &self.lab.lab(&["logs", node, "-n", "30"]).unwrap_or_else(|error| format!("{error:#}\n"));
        }
        out
    }

    pub fn primary(&self) -> Result<String> {
        self.lab.primary(DB.resource)
    }

    /// The nodes that are not primary.
    pub fn secondaries(&self) -> Result<Vec<&'static str>> {
        let primary = self.primary()?;
        Ok(NODES.into_iter().filter(|node| *node != primary).collect())
    }

    /// Path of the first volume's device on the node that serves it.
    pub fn device(&self, resource: &str) -> Result<(String, String)> {
        let (node, mut devices) = self.devices(resource)?;
        Ok((node, devices.swap_remove(0)))
    }

    /// Paths of the volumes' devices, of which there is at least one, on the node that serves them.
    pub fn devices(&self, resource: &str) -> Result<(String, Vec<String>)> {
        mainstay_tests::wait_for("a device", LIMIT, || {
            let view = self.lab.resource(resource)?;
            let primary = view.primary.with_context(|| format!("{resource} has no primary"))?;
            let replica = view.replicas.into_iter().find(|replica| replica.node == primary);
            let live = replica.and_then(|replica| replica.live).context("the primary's engine is silent")?;
            ensure!(!live.devices.is_empty(), "the primary has no device yet");
            Ok((primary, live.devices.into_iter().map(|device| device.path).collect()))
        })
    }

    /// Checks everything that has to hold after every scenario.
    pub fn prove(&self) -> Result<()> {
        self.lab.wait_in_sync(DB.resource, LIMIT)?;
        self.lab.wait_running(DB.name, LIMIT)?;
        let verdict = proof::ledger(&self.lab, &DB.address(), &self.notes)?;
        ensure!(verdict.good() && verdict.acknowledged_rows > 0, "the ledger is broken: {verdict:?}");
        let (checked, faults) = proof::tables(&self.lab, &DB.address())?;
        ensure!(checked > 0 && faults.is_empty(), "CHECK TABLE: {faults:?}");
        self.prove_equal(DB.resource)?;
        eprintln!("  {} rows acknowledged so far, none lost", verdict.acknowledged_rows);
        Ok(())
    }

    /// Every row acknowledged so far is there, while more are being inserted.
    pub fn prove_rows(&self) -> Result<()> {
        let verdict = proof::ledger(&self.lab, &DB.address(), &self.notes)?;
        ensure!(verdict.lost_rows == 0 && verdict.wrong_rows == 0, "the ledger is broken: {verdict:?}");
        Ok(())
    }

    pub fn prove_equal(&self, resource: &str) -> Result<()> {
        let report = self.lab.scrub(resource)?;
        ensure!(report.equal, "replicas differ: {}", proof::difference(&report));
        Ok(())
    }
}

/// Runs a scenario while the ledger inserts, checks that it can insert afterwards, and then runs
/// the proofs.
pub fn under_load(cluster: &Cluster, scenario: impl Fn(&Cluster, &Ledger) -> Result<()>) -> Result<()> {
    under_load_through(cluster, &DB.address(), scenario)
}

/// The same, with a ledger that inserts through another address.
pub fn under_load_through(
    cluster: &Cluster,
    address: &str,
    scenario: impl Fn(&Cluster, &Ledger) -> Result<()>,
) -> Result<()> {
    let ledger = Ledger::start(&cluster.lab, address, &cluster.notes, LEDGER_CONNECTIONS, 2)?;
    ledger.wait_commit(now_us(), LIMIT)?;
    scenario(cluster, &ledger)?;
    ledger.wait_commit(now_us(), LIMIT).context("after the scenario")?;
    ledger.stop()?;
    cluster.prove()
}
