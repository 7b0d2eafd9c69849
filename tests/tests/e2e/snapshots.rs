//! Snapshots, and a database that is started on a clone of one while replication goes on.

use crate::cluster::{Cluster, DB, LEDGER_CONNECTIONS, LIMIT, NODES};
use crate::slow::Throttle;
use anyhow::{Context, Result, ensure};
use mainstay_api::rest::{SnapshotFiles, SnapshotSpace, SnapshotState};
use mainstay_tests::ledger::TABLE;
use mainstay_tests::mariadb::{PASSWORD, USER, command};
use mainstay_tests::proof::Ledger;
use mainstay_tests::{now_us, wait_for};

const NAME: &str = "nightly";
const PORT: u16 = 3399;

/// Returns the answer of the server that listens at a socket of a node.
fn sql(cluster: &Cluster, node: &str, root: &str, statement: &str) -> Result<String> {
    let socket = format!("--socket={root}/data/mariadb.sock");
    let (user, password) = (format!("--user={USER}"), format!("--password={PASSWORD}"));
    let words = ["mariadb", "--no-defaults", &socket, &user, &password, "--skip-column-names", "--execute"];
    let said = cluster.lab.exec(node, &[&words[..], &[statement]].concat())?;
    Ok(said.trim().to_owned())
}

fn rows(cluster: &Cluster, node: &str, root: &str) -> Result<u64> {
    let said = sql(cluster, node, root, &format!("SELECT COUNT(*) FROM {TABLE}"))?;
    said.parse().with_context(|| format!("the server says `{said}`"))
}

/// The files of snapshots in the pool of a node.
fn files(cluster: &Cluster, node: &str) -> Result<usize> {
    let list = cluster.lab.shell(node, "find /var/lib/mainstay/pools/default -name 'snap*' | wc -l")?;
    list.trim().parse().with_context(|| format!("find says `{list}`"))
}

/// Number of files that a snapshot has in the pool of a node: for each volume a clone, or a map and
/// the kept blocks; and the checksums.
fn files_of_one(cluster: &Cluster, node: &str) -> Result<usize> {
    let maps = "find /var/lib/mainstay/pools/default -name 'snap*-map0' | wc -l";
    Ok(if cluster.lab.shell(node, maps)?.trim() == "0" { 2 } else { 3 })
}

/// Returns the space that the snapshot takes on a node.
fn space(cluster: &Cluster, node: &str) -> Result<SnapshotSpace> {
    let binary = cluster.lab.binary().to_string_lossy();
    let said = cluster.lab.exec(node, &[&binary, "snapshot", "show", DB.resource, NAME, "--json"])?;
    let files: SnapshotFiles = serde_json::from_str(&said).with_context(|| said.clone())?;
    files.space.context("the file system does not tell")
}

pub fn cluster_without_reflink() -> Result<Cluster> {
    Cluster::of("-no-reflink", &["--no-reflink"], &NODES)
}

/// The same in a pool that cannot clone files: overwritten blocks are put aside (ADR 20).
pub fn where_files_cannot_be_cloned(cluster: &Cluster, ledger: &Ledger) -> Result<()> {
    let (node, probe) =
        (NODES[0], "cd /var/lib/mainstay && echo x > probe && cp --reflink=always probe probe2");
    ensure!(cluster.lab.shell(node, probe).is_err(), "files can be cloned in {}", cluster.lab.name);
    a_database_runs_on_a_clone_of_a_snapshot(cluster, ledger)?;
    a_resource_is_made_of_a_snapshot(cluster, ledger)?;
    a_resource_is_rolled_back_to_a_snapshot(cluster)
}

/// No peer can do this. Rows are inserted all the while, the snapshot is the same everywhere, and a
/// secondary serves it.
pub fn a_database_runs_on_a_clone_of_a_snapshot(cluster: &Cluster, ledger: &Ledger) -> Result<()> {
    let primary = cluster.primary()?;
    // InnoDB shows a row to others before its commit is on the disk and acknowledged. That may be
    // one row for each connection of the ledger.
    let before = rows(cluster, &primary, &DB.root())?.saturating_sub(LEDGER_CONNECTIONS as u64);
    cluster.lab.cli(&["snapshot", "create", DB.resource, NAME])?;
    let after = rows(cluster, &primary, &DB.root())?;
    let view = cluster.lab.resource(DB.resource)?;
    let [snapshot] = &view.snapshots[..] else { anyhow::bail!("the snapshots are {:?}", view.snapshots) };
    let at = snapshot.nodes.first().map(|on| on.index);
    let whole = snapshot.nodes.iter().all(|on| on.state == SnapshotState::Held && Some(on.index) == at);
    ensure!(snapshot.nodes.len() == NODES.len() && whole, "it is not the same everywhere: {snapshot:?}");

    let node = cluster.secondaries()?[0];
    let (directory, binary) =
        ("/var/lib/mainstay/pools/default/clone-test", cluster.lab.binary().to_string_lossy());
    let taken = space(cluster, node)?;
    let of_one = files_of_one(cluster, node)?;
    ensure!(
        taken.bytes > 0 && (of_one == 3 || taken.own_bytes < taken.bytes),
        "it shares what it holds: {taken:?}"
    );
    let root = format!("{directory}/mnt");
    cluster.lab.exec(node, &[&binary, "snapshot", "clone", DB.resource, NAME, directory])?;
    // Another node of the lab has mounted the original in the same kernel.
    let mount = format!("mkdir -p {root} && mount -o loop,nouuid {directory}/vol0 {root}");
    cluster.lab.shell(node, &mount)?;
    let words = command(&root, PORT);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut server = cluster.lab.spawn(node, &words, "clone.log")?;
    let found = wait_for("a database on the clone", LIMIT, || rows(cluster, node, &root))?;
    ensure!(
        (before..=after).contains(&found),
        "{found} rows are in the clone, {before} to {after} were there"
    );
    let check = sql(cluster, node, &root, &format!("CHECK TABLE {TABLE} EXTENDED"))?;
    ensure!(check.ends_with("OK"), "CHECK TABLE: {check}");
    sql(cluster, node, &root, &format!("DELETE FROM {TABLE}"))?;
    ensure!(rows(cluster, node, &root)? == 0, "the clone can be written");
    ledger.wait_commit(now_us(), LIMIT).context("beside a database on the clone")?;
    sql(cluster, node, &root, "SHUTDOWN")?;
    server.wait().context("the clone's server")?;
    cluster.lab.shell(node, &format!("umount {root} && rm -r {directory}"))?;

    // The snapshot keeps the blocks that later rows have overwritten.
    wait_for("blocks of which only the snapshot has the old content", LIMIT, || {
        let now = space(cluster, node)?;
        ensure!(now.own_bytes > taken.own_bytes, "{now:?}, and at first {taken:?}");
        Ok(())
    })?;

    // The snapshot's files are still there, and go when it is deleted.
    ensure!(files(cluster, node)? == of_one, "the snapshot's files are there, and that of its sums");
    cluster.lab.cli(&["snapshot", "delete", DB.resource, NAME])?;
    for node in NODES {
        wait_for("the end of the snapshot's files", LIMIT, || {
            let left = files(cluster, node)?;
            ensure!(left == 0, "{left} are left on {node}");
            Ok(())
        })?;
    }
    ensure!(cluster.lab.resource(DB.resource)?.snapshots.is_empty(), "it is forgotten");
    Ok(())
}

const COPY: &str = "copy";

/// A resource of the cluster is made of a snapshot. Two replicas share the snapshot's space, and
/// the third one is copied. A database runs on it while rows are inserted into the original.
pub fn a_resource_is_made_of_a_snapshot(cluster: &Cluster, ledger: &Ledger) -> Result<()> {
    let lab = &cluster.lab;
    let primary = cluster.primary()?;
    let before = rows(cluster, &primary, &DB.root())?.saturating_sub(LEDGER_CONNECTIONS as u64);
    lab.cli(&["snapshot", "create", DB.resource, NAME])?;
    let after = rows(cluster, &primary, &DB.root())?;
    let from = format!("{}@{NAME}", DB.resource);
    for (from, code) in
        [("db@no-such", "unknown-snapshot"), ("no-such@s", "unknown-resource"), ("db", "db@before-upgrade")]
    {
        let refused = lab.try_cli(&["resource", "create", COPY, "--from", from])?;
        ensure!(refused.stderr.contains(code), "{from}: {refused:?}");
    }
    let refused = lab.try_cli(&["resource", "create", COPY, "--from", &from, "--size", "8MiB"])?;
    ensure!(refused.stderr.contains("leave the sizes out"), "{refused:?}");

    let said =
        lab.cli(&["resource", "create", COPY, "--from", &from, "--replicas", &NODES[..2].join(",")])?;
    ensure!(said.contains("resource copy: ok"), "{said}");
    let (made, source) = (lab.resource(COPY)?, lab.resource(DB.resource)?);
    ensure!(made.volumes == source.volumes && made.journal_bytes == source.journal_bytes, "{made:?}");
    ensure!(made.origin.is_none() && made.replicas.iter().all(|replica| replica.in_sync), "{made:?}");
    // No resource depends on the snapshot any more.
    lab.cli(&["snapshot", "delete", DB.resource, NAME])?;
    wait_for("the end of the snapshot that it was made of", LIMIT, || {
        let left = lab.resource(COPY)?.snapshots.len();
        ensure!(left == 0, "{left} snapshots of the copy");
        Ok(())
    })?;
    lab.cli(&["resource", "add-replica", COPY, NODES[2]])?;
    cluster.prove_equal(COPY)?;

    let (node, device) = cluster.device(COPY)?;
    let (directory, root) = ("/srv/copy-test", "/srv/copy-test/mnt");
    lab.shell(&node, &format!("mkdir -p {root} && mount -o nouuid {device} {root}"))?;
    let words = command(root, PORT);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut server = lab.spawn(&node, &words, "copy.log")?;
    let found = wait_for("a database on the copy", LIMIT, || rows(cluster, &node, root))?;
    ensure!(
        (before..=after).contains(&found),
        "{found} rows are in the copy, {before} to {after} were there"
    );
    let check = sql(cluster, &node, root, &format!("CHECK TABLE {TABLE} EXTENDED"))?;
    ensure!(check.ends_with("OK"), "CHECK TABLE: {check}");
    sql(cluster, &node, root, &format!("DELETE FROM {TABLE}"))?;
    ledger.wait_commit(now_us(), LIMIT).context("beside a database on the copy")?;
    sql(cluster, &node, root, "SHUTDOWN")?;
    server.wait().context("the copy's server")?;
    lab.shell(&node, &format!("umount {root} && rm -r {directory}"))?;
    cluster.prove_equal(COPY)?;
    lab.cli(&["resource", "delete", COPY, "--yes"]).map(drop)
}

const SCRATCH: &str = "scratch";

/// Fills the first blocks of a device with a letter, durably.
fn fill(cluster: &Cluster, node: &str, device: &str, letter: char) -> Result<()> {
    let write = format!(
        "head -c 1048576 /dev/zero | tr '\\0' {letter} | dd of={device} bs=64K oflag=direct conv=fsync,notrunc"
    );
    cluster.lab.shell(node, &write).map(drop)
}

fn letter(cluster: &Cluster, node: &str, device: &str) -> Result<String> {
    let read = format!("dd if={device} bs=64K count=16 iflag=direct status=none | tr -s 'a-z' | head -c 8");
    Ok(cluster.lab.shell(node, &read)?.trim().to_owned())
}

/// A rollback there and back again has the same result on every replica, also on the one whose node
/// is killed meanwhile. Impossible rollbacks are refused.
pub fn a_resource_is_rolled_back_to_a_snapshot(cluster: &Cluster) -> Result<()> {
    let lab = &cluster.lab;
    lab.create_resource(SCRATCH, "64MiB", &NODES, &["--journal", "16MiB"])?;
    let (node, device) = cluster.device(SCRATCH)?;
    fill(cluster, &node, &device, 'a')?;
    lab.cli(&["snapshot", "create", SCRATCH, "first"])?;
    fill(cluster, &node, &device, 'b')?;
    let refused = lab.try_cli(&["snapshot", "rollback", SCRATCH, "no-such"])?;
    ensure!(refused.stderr.contains("unknown-snapshot"), "{refused:?}");
    lab.cli(&["snapshot", "create", DB.resource, "in-use"])?;
    let refused = lab.try_cli(&["snapshot", "rollback", DB.resource, "in-use"])?;
    ensure!(refused.stderr.contains("resource-in-use"), "{refused:?}");
    lab.cli(&["snapshot", "delete", DB.resource, "in-use"])?;

    let away = NODES.into_iter().find(|other| *other != node).context("there are three")?;
    lab.kill(away)?;
    let said = lab.cli(&["snapshot", "rollback", SCRATCH, "first", "--keep", "second"])?;
    ensure!(said.contains("snapshot rollback scratch second"), "how to undo it is said: {said}");
    ensure!(
        letter(cluster, &node, &device)? == "a",
        "the device shows {:?}",
        letter(cluster, &node, &device)?
    );
    lab.start(away)?;
    // The node that was away opens its replica first, and meets the entry on its way.
    wait_for("equal replicas", LIMIT, || {
        lab.wait_in_sync(SCRATCH, LIMIT)?;
        cluster.prove_equal(SCRATCH)
    })?;

    lab.cli(&["snapshot", "rollback", SCRATCH, "second", "--discard"])?;
    ensure!(
        letter(cluster, &node, &device)? == "b",
        "the device shows {:?}",
        letter(cluster, &node, &device)?
    );
    cluster.prove_equal(SCRATCH)?;
    let names: Vec<_> = lab.resource(SCRATCH)?.snapshots.into_iter().map(|one| one.name).collect();
    ensure!(names == ["first", "second"], "the snapshots are {names:?}");
    let files = cluster
        .lab
        .shell(&node, "find /var/lib/mainstay/pools/default -path '*scratch*' -name 'snap*' | wc -l")?;
    let expected = 2 * files_of_one(cluster, &node)?;
    ensure!(files.trim() == expected.to_string(), "{files} files are left on {node}, two of sums among them");
    lab.cli(&["resource", "delete", SCRATCH, "--yes"]).map(drop)
}

const BEFORE: &str = "before";
/// Limit of the link to the node that is copied to, in bytes per second. The copy takes a quarter
/// of a minute.
const COPY_BYTES_PER_S: u64 = 4 << 20;

/// The last whole content of a replica is there while it is copied to: as files, and for a resource
/// of its own. It goes when the copy has ended (R16).
pub fn the_last_whole_state_of_a_replica_is_kept_while_it_is_copied_to(cluster: &Cluster) -> Result<()> {
    let lab = &cluster.lab;
    lab.create_resource(SCRATCH, "128MiB", &NODES, &["--journal", "16MiB"])?;
    let (node, device) = cluster.device(SCRATCH)?;
    fill(cluster, &node, &device, 'a')?;
    let refused = lab.try_cli(&["snapshot", "create", SCRATCH, "before-copy"])?;
    ensure!(refused.stderr.contains("bad-name"), "{refused:?}");
    // The command line asks the first node.
    let away = NODES.into_iter().rev().find(|other| *other != node).context("there are three")?;
    lab.lab(&["isolate", away])?;
    fill(cluster, &node, &device, 'b')?;
    let noise =
        format!("dd if=/dev/urandom of={device} bs=1M seek=2 count=64 oflag=direct conv=notrunc status=none");
    lab.shell(&node, &noise)?;
    let throttle = Throttle::set(&lab.name, away, COPY_BYTES_PER_S)?;
    lab.lab(&["heal"])?;

    let binary = lab.binary().to_string_lossy();
    let kept = wait_for("what is kept of the replica that is copied to", LIMIT, || {
        let view = lab.resource(SCRATCH)?;
        let found = view.snapshots.into_iter().find(|one| one.name == "before-copy");
        found.with_context(|| format!("{away} does not keep what it held"))
    })?;
    let [on] = &kept.nodes[..] else { anyhow::bail!("one node keeps it: {kept:?}") };
    ensure!(on.node == away && on.index > 0, "{kept:?}");
    let list = lab.cli(&["snapshot", "list", SCRATCH])?;
    ensure!(list.contains("before-copy") && list.contains(&format!("{away} holds it")), "{list}");
    let files = "/var/lib/mainstay/pools/default/before-test";
    lab.exec(away, &[&binary, "snapshot", "clone", SCRATCH, "before-copy", files])?;
    let found = letter(cluster, away, &format!("{files}/vol0"))?;
    ensure!(found == "a", "what is kept begins with {found:?}");
    lab.shell(away, &format!("rm -r {files}"))?;

    let from = format!("{SCRATCH}@before-copy");
    let refused = lab.try_cli(&["resource", "create", BEFORE, "--from", &from, "--replicas", &node])?;
    ensure!(refused.stderr.contains(away), "the holder of the kept state is named: {refused:?}");
    lab.cli(&["resource", "create", BEFORE, "--from", &from, "--replicas", away])?;
    let (on, made) = cluster.device(BEFORE)?;
    let found = letter(cluster, &on, &made)?;
    ensure!(on == away && found == "a", "what was made of it is on {on} and begins with {found:?}");
    let replica = lab.resource(SCRATCH)?;
    let copied = replica.replicas.iter().any(|one| one.node == away && !one.in_sync);
    ensure!(copied, "the copy had ended by then, so that nothing is proven: {replica:?}");

    // An operator needs its space. The next one goes by itself.
    let left = || -> Result<u64> {
        let left = lab.shell(away, "find /var/lib/mainstay/pools/default -name 'before-copy*' | wc -l")?;
        Ok(left.trim().parse::<u64>()? + lab.resource(SCRATCH)?.snapshots.len() as u64)
    };
    lab.cli(&["snapshot", "delete", SCRATCH, "before-copy"])?;
    wait_for("the end of what was kept", LIMIT, || {
        ensure!(left()? == 0, "{} are left", left()?);
        Ok(())
    })?;
    let replica = lab.resource(SCRATCH)?;
    let copied = replica.replicas.iter().any(|one| one.node == away && !one.in_sync);
    ensure!(copied, "the copy had ended by then, so that nothing is proven: {replica:?}");
    lab.lab(&["isolate", away])?;
    drop(throttle);
    lab.lab(&["heal"])?;
    lab.wait_in_sync(SCRATCH, LIMIT)?;
    lab.lab(&["isolate", away])?;
    lab.shell(&node, &noise)?;
    lab.lab(&["heal"])?;
    lab.wait_in_sync(SCRATCH, LIMIT)?;
    wait_for("the end of what was kept", LIMIT, || {
        ensure!(left()? == 0, "{} are left", left()?);
        Ok(())
    })?;
    ensure!(letter(cluster, &node, &device)? == "b", "the resource goes on with what it holds");
    cluster.prove_equal(SCRATCH)?;
    lab.cli(&["resource", "delete", BEFORE, "--yes"])?;
    lab.cli(&["resource", "delete", SCRATCH, "--yes"]).map(drop)
}
