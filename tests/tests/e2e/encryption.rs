//! Data that somebody sees who can read the network between two nodes.

use crate::cluster::{Cluster, LIMIT, NODES};
use anyhow::{Context, Result, ensure};
use mainstay_tests::wait_for;
use std::fs;
use std::time::Duration;

const NAME: &str = "secret";
const MARK: &str = "MAINSTAY-LETTER-OF-CREDIT-0123456789";
const DATA: &str = "/tmp/mainstay-secret";

/// Reads all packets of a node until it is told to stop, and says how many bytes they had and how
/// often the mark was in them.
const LISTENER: &str = "import signal, socket, sys\n\
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))\n\
    s.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)\n\
    s.settimeout(0.1)\n\
    over = []\n\
    signal.signal(signal.SIGTERM, lambda *_: over.append(1))\n\
    mark, total, seen = sys.argv[1].encode(), 0, 0\n\
    print('listening', flush=True)\n\
    while not over:\n\
    \x20try: packet = s.recv(1 << 18)\n\
    \x20except (TimeoutError, socket.timeout): continue\n\
    \x20total += len(packet); seen += packet.count(mark)\n\
    print('bytes', total, 'marks', seen, flush=True)\n";

/// Writes a mebibyte full of the mark to the device, and returns how often a listener at the other
/// node saw it.
fn marks_on_the_wire(cluster: &Cluster, log: &str) -> Result<u64> {
    let lab = &cluster.lab;
    let (node, device) = cluster.device(NAME)?;
    let other = NODES[..2].iter().find(|other| **other != node).context("the other replica")?;
    let mut listener = lab.spawn(other, &["python3", "-c", LISTENER, MARK], log)?;
    let said = || -> Result<String> { Ok(fs::read_to_string(lab.dir().join(log))?) };
    wait_for("a listener", LIMIT, || {
        let said = said()?;
        ensure!(said.contains("listening"), "{said}");
        Ok(())
    })?;
    let script = format!(
        "yes {MARK} | head -c 1048576 > {DATA} && dd if={DATA} of={device} bs=64K oflag=direct conv=fsync status=none; rm {DATA}"
    );
    lab.shell(&node, &script)?;
    lab.wait_in_sync(NAME, LIMIT)?;
    let pid = lab.shell(other, &format!("pgrep -o -f {MARK}"))?;
    lab.shell(other, &format!("kill -TERM {}", pid.trim()))?;
    listener.wait()?;
    let said = said()?;
    let words: Vec<&str> = said.split_whitespace().collect();
    let [.., "bytes", total, "marks", seen] = words[..] else { anyhow::bail!("the listener said {said}") };
    ensure!(total.parse::<u64>()? > 1 << 20, "the listener did not hear the replication: {said}");
    Ok(seen.parse()?)
}

/// Ends the connections between the two nodes, so that they are made anew.
fn reconnect(cluster: &Cluster) -> Result<()> {
    cluster.lab.lab(&["cut", NODES[0], NODES[1]])?;
    std::thread::sleep(Duration::from_millis(1500));
    cluster.lab.lab(&["heal"])?;
    cluster.lab.wait_in_sync(NAME, LIMIT)
}

/// S641: nobody reads what is replicated, unless an operator has said so, and `status` says it
/// then.
pub fn replication_is_encrypted_unless_the_cluster_says_otherwise(cluster: &Cluster) -> Result<()> {
    let lab = &cluster.lab;
    lab.create_resource(NAME, "64MiB", &NODES[..2], &[])?;
    ensure!(marks_on_the_wire(cluster, "wire-1")? == 0, "the data went over the wire as it is");
    lab.cli(&["cluster", "set", "data-encryption=off"])?;
    let notice = "data between nodes is not encrypted";
    let status = lab.cli(&["status"])?;
    ensure!(status.contains(notice) && status.contains("all is well"), "{status}");
    reconnect(cluster)?;
    let seen = marks_on_the_wire(cluster, "wire-2")?;
    ensure!(seen > 1000, "data-encryption is off, and the mark was seen {seen} times");
    lab.cli(&["cluster", "set", "data-encryption=on"])?;
    let status = lab.cli(&["status"])?;
    ensure!(!status.contains(notice), "{status}");
    // The setting takes effect at once, without anything else being done.
    std::thread::sleep(Duration::from_secs(3));
    ensure!(marks_on_the_wire(cluster, "wire-3")? == 0, "the data went over the wire as it is again");
    cluster.prove_equal(NAME)?;
    lab.cli(&["resource", "delete", NAME, "--yes"]).map(drop)
}
