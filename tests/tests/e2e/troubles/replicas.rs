//! Directories of replicas in a pool.

use super::Trouble;
use crate::cluster::{LIMIT, NODES};
use anyhow::{Context, Result, ensure};
use mainstay_tests::lab::Lab;
use mainstay_tests::wait_for;

pub const TROUBLES: &[(&str, Trouble)] = &[
    ("troubles_a_copy_of_a_directory_is_never_the_replica", copy),
    ("troubles_an_older_copy_that_is_put_back_does_not_lead", older_copy),
    ("troubles_a_replica_without_its_label_is_reported_with_the_remedy", label),
    ("troubles_the_directory_of_a_running_replica_is_missed_when_it_is_gone", gone_while_running),
    ("troubles_a_replica_that_is_opened_anew_while_clients_write_rejoins", opened_anew),
    ("troubles_all_directories_are_moved_away_and_put_back", moved_and_put_back),
    ("troubles_a_resource_is_deleted_while_a_node_is_away", deleted_while_away),
    ("troubles_full_pools_go_on_when_there_is_room", full_pools),
];

const POOL: &str = "/var/lib/mainstay/pools/default";

fn create(lab: &Lab, name: &str) -> Result<()> {
    lab.create_resource(name, "64MiB", &NODES, &["--journal", "16MiB"])
}

/// The primary and its device.
fn device(lab: &Lab, name: &str) -> Result<(String, String)> {
    wait_for("a device", LIMIT, || {
        let view = lab.resource(name)?;
        let primary = view.primary.context("no primary yet")?;
        let replica = view.replicas.iter().find(|replica| replica.node == primary);
        let live =
            replica.and_then(|replica| replica.live.as_ref()).context("its engine says nothing yet")?;
        let device = live.devices.first().context("no device yet")?;
        Ok((primary, device.path.clone()))
    })
}

fn write(lab: &Lab, name: &str, word: &str) -> Result<()> {
    let (node, device) = device(lab, name)?;
    let dd = format!("dd of={device} bs=4096 conv=sync,notrunc oflag=direct status=none");
    lab.shell(&node, &format!("echo {word} | {dd}")).map(drop)
}

fn expect(lab: &Lab, name: &str, word: &str) -> Result<()> {
    let (node, device) = device(lab, name)?;
    let found =
        lab.shell(&node, &format!("dd if={device} bs=4096 count=1 iflag=direct status=none | head -n 1"))?;
    ensure!(found.trim() == word, "{found:?} instead of {word:?} on {node}");
    Ok(())
}

fn power_cut(lab: &Lab) -> Result<()> {
    NODES.iter().try_for_each(|node| lab.kill(node))?;
    NODES.iter().try_for_each(|node| lab.start(node))
}

fn says(lab: &Lab, words: &[&str]) -> Result<()> {
    wait_for("the status to say it", LIMIT, || {
        let said = lab.try_cli(&["status"])?.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        for word in words {
            ensure!(said.contains(word), "not said: {word}\n{said}");
        }
        Ok(())
    })
}

fn own(lab: &Lab, name: &str) -> Result<String> {
    Ok(format!("{name}-{}", lab.resource(name)?.id))
}

/// A1: the copy has everything that the replica had when it was made, and the same label.
fn copy(lab: &Lab) -> Result<()> {
    create(lab, "db")?;
    write(lab, "db", "before")?;
    let (node, _) = device(lab, "db")?;
    let own = own(lab, "db")?;
    lab.shell(&node, &format!("cd {POOL} && cp -a {own} db-copy && cp -a {own} {own}.removed && sync"))?;
    write(lab, "db", "after")?;
    power_cut(lab)?;
    expect(lab, "db", "after")?;
    lab.wait_in_sync("db", LIMIT)?;
    expect(lab, "db", "after")?;
    says(lab, &["db-copy is not used", &format!("label of {own}"), "move it out of the pool"])?;
    lab.cli(&["resource", "delete", "db", "--yes"])?;
    let left = lab.shell(&node, &format!("cd {POOL} && ls && rm -r db-copy {own}.removed"))?;
    ensure!(left.contains("db-copy") && left.contains(".removed"), "copies were removed: {left}");
    Ok(())
}

/// A1: a copy is put in the place of the replica, and the replica's directory is renamed, while the
/// node runs. Then all nodes lose power.
fn older_copy(lab: &Lab) -> Result<()> {
    create(lab, "db")?;
    write(lab, "db", "before")?;
    let (node, _) = device(lab, "db")?;
    let own = own(lab, "db")?;
    lab.shell(&node, &format!("cp -a {POOL}/{own} /var/lib/mainstay/image"))?;
    write(lab, "db", "after")?;
    wait_for("the node to know how far its replica reaches", LIMIT, || {
        let view = lab.resource("db")?;
        let replica = view.replicas.iter().find(|replica| replica.node == node);
        let live = replica.and_then(|replica| replica.live.as_ref()).context("its engine says nothing")?;
        let known = lab.shell(&node, "cat /var/lib/mainstay/held.json")?;
        let index = format!("\"index\":{}", live.commit);
        ensure!(known.contains(&index), "{known}, and {index} is committed");
        Ok(())
    })?;
    lab.shell(&node, &format!("cd {POOL} && mv {own} db-old && mv ../../image {own} && sync"))?;
    power_cut(lab)?;
    expect(lab, "db", "after")?;
    ensure!(lab.primary("db")? != node, "the older copy leads");
    says(lab, &["older copy", "db-old is not used"])?;
    lab.shell(&node, &format!("cd {POOL} && mv {own} ../../image"))?;
    lab.wait_in_sync("db", LIMIT)?;
    expect(lab, "db", "after")?;
    lab.cli(&["resource", "delete", "db", "--yes"])?;
    lab.shell(&node, &format!("rm -r {POOL}/db-old /var/lib/mainstay/image")).map(drop)
}

/// A1, E: an empty label costs its own replica and no other. The replica counts again as soon as
/// the label is put back. Swapped journals of two replicas cost both replicas, and no write. Both
/// count again when the journals are put back. The same holds of their volumes and checksums, which
/// fit each other.
fn label(lab: &Lab) -> Result<()> {
    create(lab, "db")?;
    create(lab, "logs")?;
    write(lab, "db", "kept")?;
    let (primary, _) = device(lab, "db")?;
    let node = NODES.into_iter().find(|node| *node != primary).context("another node")?;
    let own = own(lab, "db")?;
    let label = format!("{POOL}/{own}/replica.json");
    // An agent that runs would write it again.
    let agent = lab.pids(node, "agent")?.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    let empty = format!("kill -STOP {agent} && cp {label} /var/lib/mainstay/label && : > {label} && sync");
    lab.shell(node, &empty)?;
    lab.kill(node)?;
    lab.start(node)?;
    says(
        lab,
        &["replica.json cannot be read: it is empty", "put its label back: `rm -f", "move the directory out"],
    )?;
    lab.wait_in_sync("logs", LIMIT)?;
    // The suggested command also works after a power cut right after it.
    let advice = lab.status()?.advice.join("\n");
    let command = advice.split('`').find(|part| part.starts_with("rm -f")).context("a command")?;
    lab.shell(node, command)?;
    lab.kill(node)?;
    lab.start(node)?;
    lab.wait_in_sync("db", LIMIT)?;
    lab.shell(node, &format!("test -s {label} && rm /var/lib/mainstay/label"))?;
    expect(lab, "db", "kept")?;
    let other = self::own(lab, "logs")?;
    for files in ["journal", "vol0 sums0"] {
        let swap = format!(
            "cd {POOL} && for f in {files}; do mv {own}/$f j && mv {other}/$f {own}/$f && mv j {other}/$f; done && sync"
        );
        lab.shell(node, &swap)?;
        lab.kill(node)?;
        lab.start(node)?;
        says(
            lab,
            &[
                &format!("the replica of db on {node} cannot be used"),
                &format!("the replica of logs on {node} cannot be used"),
            ],
        )?;
        expect(lab, "db", "kept")?;
        lab.shell(node, &swap)?;
        for name in ["db", "logs"] {
            lab.wait_in_sync(name, LIMIT)?;
        }
    }
    expect(lab, "db", "kept")?;
    for name in ["db", "logs"] {
        lab.cli(&["resource", "delete", name, "--yes"])?;
    }
    Ok(())
}

/// An operator removes the label of a running replica, renames its directory, and moves the
/// primary's out of the pool.
fn gone_while_running(lab: &Lab) -> Result<()> {
    create(lab, "db")?;
    write(lab, "db", "kept")?;
    let (primary, _) = device(lab, "db")?;
    let node = NODES.into_iter().find(|node| *node != primary).context("another node")?;
    let own = own(lab, "db")?;
    lab.shell(node, &format!("rm {POOL}/{own}/replica.json"))?;
    wait_for("the label to be written again", LIMIT, || {
        lab.shell(node, &format!("test -s {POOL}/{own}/replica.json")).map(drop)
    })?;
    lab.shell(node, &format!("cd {POOL} && mv {own} {own}.new"))?;
    says(lab, &["is in use at this moment: it was renamed from", "rename it back: `mv -T"])?;
    lab.shell(node, &format!("mv -T {POOL}/{own}.new {POOL}/{own}"))?;
    lab.shell(&primary, &format!("mv {POOL}/{own} /var/lib/mainstay/aside"))?;
    wait_for("another primary", LIMIT, || {
        let now = lab.primary("db")?;
        ensure!(now != primary, "{now} is primary still");
        Ok(())
    })?;
    expect(lab, "db", "kept")?;
    lab.wait_in_sync("db", LIMIT)?;
    lab.shell(&primary, &format!("test -d {POOL}/{own} && rm -r /var/lib/mainstay/aside"))?;
    lab.cli(&["resource", "delete", "db", "--yes"]).map(drop)
}

/// An operator puts a byte copy of a secondary's volume in its place while clients write. The links
/// between the nodes stay, so only the replica itself can tell the primary that it was opened anew.
fn opened_anew(lab: &Lab) -> Result<()> {
    create(lab, "db")?;
    write(lab, "db", "kept")?;
    let (primary, path) = device(lab, "db")?;
    let node = NODES.into_iter().find(|node| *node != primary).context("another node")?;
    let own = own(lab, "db")?;
    let dd =
        format!("dd if=/dev/zero of={path} bs=4096 count=1 seek=1 conv=notrunc oflag=direct status=none");
    let load = format!("timeout 60 sh -c 'while :; do {dd}; sleep 0.05; done' >/dev/null 2>&1 & echo $!");
    let load = lab.shell(&primary, &load)?;
    let copy = format!("cd {POOL}/{own} && cp -a vol0 ../../../copy && mv ../../../copy vol0");
    lab.shell(node, &copy)?;
    let in_sync = |wanted: bool| {
        wait_for(&format!("{node} to be in sync: {wanted}"), LIMIT, || {
            let view = lab.resource("db")?;
            let replica = view.replicas.iter().find(|replica| replica.node == node);
            ensure!(replica.is_some_and(|replica| replica.in_sync == wanted), "{view:?}");
            Ok(())
        })
    };
    in_sync(false)?;
    in_sync(true)?;
    lab.cli(&["resource", "scrub", "db"])?;
    expect(lab, "db", "kept")?;
    lab.shell(&primary, &format!("kill {load}"))?;
    lab.wait_in_sync("db", LIMIT)?;
    lab.cli(&["resource", "delete", "db", "--yes"]).map(drop)
}

/// All directories are renamed while all nodes are down. The node that has everything makes no
/// empty replica in the place of its own.
fn moved_and_put_back(lab: &Lab) -> Result<()> {
    create(lab, "db")?;
    write(lab, "db", "kept")?;
    let own = own(lab, "db")?;
    for node in NODES {
        lab.shell(node, &format!("cd {POOL} && mv {own} {own}.moved && sync"))?;
    }
    power_cut(lab)?;
    says(
        lab,
        &[
            "is gone from the pool (moved or deleted); to put it back, run `mv -T",
            "put its directory back on",
        ],
    )?;
    for node in NODES {
        lab.shell(node, &format!("cd {POOL} && test -e {own} || mv -T {own}.moved {own}"))?;
    }
    lab.wait_in_sync("db", LIMIT)?;
    expect(lab, "db", "kept")?;
    lab.cli(&["resource", "delete", "db", "--yes"])?;
    NODES.iter().try_for_each(|node| lab.shell(node, &format!("rm -rf {POOL}/{own}.moved")).map(drop))
}

/// E: the name of a deleted resource is free at once. Its files go when their node is back, and no
/// other files go.
fn deleted_while_away(lab: &Lab) -> Result<()> {
    create(lab, "db")?;
    let old = own(lab, "db")?;
    let (primary, _) = device(lab, "db")?;
    let away = NODES.into_iter().find(|node| *node != primary).context("another node")?;
    lab.kill(away)?;
    wait_for("its death to be recorded", LIMIT, || {
        let view = lab.resource("db")?;
        ensure!(view.replicas.iter().all(|replica| replica.in_sync != (replica.node == away)), "{view:?}");
        Ok(())
    })?;
    lab.cli(&["resource", "delete", "db", "--yes"])?;
    let there: Vec<&str> = NODES.into_iter().filter(|node| *node != away).collect();
    lab.create_resource("db", "64MiB", &there, &["--journal", "16MiB"])?;
    write(lab, "db", "new")?;
    lab.start(away)?;
    wait_for("the files of the deleted resource to go", LIMIT, || {
        let files = lab.shell(away, &format!("ls {POOL}"))?;
        ensure!(!files.contains(&old), "{files}");
        Ok(())
    })?;
    expect(lab, "db", "new")?;
    lab.cli(&["resource", "delete", "db", "--yes"]).map(drop)
}

/// All pools fill up under a resource. Writes fail, acknowledged data stays, and everything goes on
/// by itself when there is room again. The advice asks for room, and for nothing that costs data.
fn full_pools(lab: &Lab) -> Result<()> {
    create(lab, "full")?;
    write(lab, "full", "before")?;
    let fill = "/var/lib/mainstay/fill";
    let most = format!(
        "fallocate -l $(($(stat -f -c '%a * %S' /var/lib/mainstay) - (8 << 20))) {fill}; \
         dd if=/dev/zero of={fill}.rest bs=64k status=none || true; sync"
    );
    for node in NODES {
        lab.shell(node, &most)?;
    }
    // More writes than the journal takes. They fail, or the replica under them is taken out of use.
    let (node, path) = device(lab, "full")?;
    let flood = format!(
        "timeout 60 dd if=/dev/urandom of={path} bs=1M seek=1 count=60 oflag=direct status=none || true"
    );
    lab.shell(&node, &flood)?;
    says(lab, &["has no space"])?;
    let said = lab.try_cli(&["status"])?.stdout;
    ensure!(!said.contains("force-promote") && !said.contains("backup"), "{said}");
    for node in NODES {
        lab.shell(node, &format!("rm {fill} {fill}.rest; sync"))?;
    }
    lab.wait_in_sync("full", LIMIT)?;
    expect(lab, "full", "before")?;
    write(lab, "full", "after")?;
    expect(lab, "full", "after")?;
    lab.cli(&["resource", "delete", "--yes", "full"]).map(drop)
}
