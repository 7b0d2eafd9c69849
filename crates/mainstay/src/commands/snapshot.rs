//! `mainstay snapshot …`.

use super::pace::Copying;
use super::{checked_name, follow, watch};
use crate::cli::{SnapshotCommand, WaitArgs};
use crate::failure::{Code, Context, Failure, Outcome, exit};
use crate::interrupt::GoesOn;
use crate::output::{self, Output, Progress};
use mainstay_agent::directories::check_clone;
use mainstay_api::rest::{
    Accepted, ResourceView, SnapshotFiles, SnapshotOnView, SnapshotRollback, SnapshotSpace, SnapshotState,
    SnapshotTake, SnapshotView,
};
use mainstay_cli::list::{Form, List};
use mainstay_client::Client;
use mainstay_engine::disk::copy_out;
use mainstay_pool::{LayerKind, Part, part_at};
use mainstay_types::clock::clock;
use mainstay_types::size;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Name under which the content of a replica from before a copy to it is listed with the snapshots.
/// It goes when the copy has ended.
const BEFORE_COPY: &str = "before-copy";

pub fn run(command: SnapshotCommand, client: &Client, output: Output) -> Outcome<u8> {
    match command {
        SnapshotCommand::Create { name, snapshot, wait } => create(&name, &snapshot, wait, client, output)?,
        SnapshotCommand::List { name, watch } => {
            let path = path(&name)?;
            let ask = || Ok(client.get::<ResourceView>(&path)?.snapshots);
            watch::list(watch, output, ask, |list| overview(list))?;
        }
        SnapshotCommand::Show { name, snapshot } => {
            let found: SnapshotFiles =
                client.get(&format!("{}/snapshots/{}", path(&name)?, checked_name(&snapshot)?))?;
            output.result(&found, details)?;
        }
        SnapshotCommand::Delete { name, snapshot, wait } => delete(&name, &snapshot, wait, client, output)?,
        SnapshotCommand::Rollback { name, snapshot, keep, discard, restart_service, wait } => {
            let request = SnapshotRollback { keep, discard, restart_service };
            roll_back(&name, &snapshot, &request, wait, client, output)?;
        }
        SnapshotCommand::Clone { name, snapshot, directory } => {
            copy(&name, &snapshot, &directory, client, output)?;
        }
    }
    Ok(0)
}

fn path(name: &str) -> Outcome<String> {
    Ok(format!("/v1/resources/{}", checked_name(name)?))
}

fn on(on: &SnapshotOnView) -> String {
    let state = match on.state {
        SnapshotState::Taking => "is taking it",
        SnapshotState::Held => "holds it",
        SnapshotState::Missing => "does not have it",
    };
    format!("{} {state}", on.node)
}

pub(super) fn overview(list: &[SnapshotView]) -> List {
    let row = |one: &SnapshotView| {
        let entry = one.nodes.iter().map(|on| on.index).max().unwrap_or(0);
        // Each node may have kept another state from before its copy.
        let on = |node: &SnapshotOnView| match node.index {
            0 => on(node),
            index if index == entry => on(node),
            index => format!("{} (entry {index})", on(node)),
        };
        let nodes: Vec<_> = one.nodes.iter().map(on).collect();
        let nodes = if one.deleting { "being deleted".into() } else { nodes.join(", ") };
        vec![one.name.clone(), clock(one.at_ms), entry.to_string(), nodes, one.id.to_string()]
    };
    List::new(&["SNAPSHOT", "TAKEN", "ENTRY", "NODES"], &["ID"], list.iter().map(row)).or_say("no snapshots")
}

/// One snapshot as a table.
fn one_row(one: &SnapshotView) -> String {
    overview(std::slice::from_ref(one)).text(Form::Table, output::columns())
}

fn details(found: &SnapshotFiles) -> String {
    let mut text = one_row(&found.snapshot);
    if found.files.is_empty() {
        return text
            + "\nthe node that was asked has no files of it; run the command on a node that holds it";
    }
    for file in &found.files {
        text += &format!("\n{file}");
    }
    if found.files.iter().any(|file| is_map(Path::new(file))) {
        text += "\nThese files hold only the blocks that were written over since, because this pool cannot clone files. `mainstay snapshot clone NAME SNAPSHOT DIRECTORY` makes whole files of the snapshot.";
    }
    text += &match found.space {
        Some(SnapshotSpace { bytes, own_bytes }) => format!(
            "\nThe files take {} of this node's pool. Deleting the snapshot gives at least {} back; other files share the rest.",
            size::size_words(bytes),
            size::size_words(own_bytes)
        ),
        None => "\nThis file system does not tell how much space deleting the snapshot gives back.".into(),
    };
    text
}

fn create(name: &str, snapshot: &str, wait: WaitArgs, client: &Client, output: Output) -> Outcome<()> {
    let request = SnapshotTake { name: checked_name(snapshot)?.to_owned() };
    let accepted: Accepted = client.post(&format!("{}/snapshots", path(name)?), &request)?;
    if wait.no_wait {
        return output.result(&accepted, |accepted| accepted.message.clone());
    }
    let path = path(name)?;
    let (look, undo) =
        (format!("mainstay snapshot list {name}"), format!("mainstay snapshot delete {name} {snapshot}"));
    let _told = GoesOn::work(&format!("taking snapshot {snapshot}"), &look, &undo);
    let mut progress = Progress::new();
    let done = follow(&format!("taking snapshot {snapshot}"), wait.wait_s, || {
        let now: ResourceView = client.get(&path)?;
        let found = now.snapshots.iter().find(|one| one.name == snapshot).cloned();
        let Some(found) = found else {
            return Err(Failure::new(
                Code::Deleted,
                format!("snapshot {snapshot} was deleted meanwhile"),
                format!(
                    "See `mainstay events`. To take one, run `mainstay snapshot create {name} {snapshot}` again."
                ),
            ));
        };
        // A replica that is not in sync meets the snapshot on its way.
        let in_sync = now.replicas.iter().filter(|replica| replica.in_sync);
        let here =
            |node: &str| found.nodes.iter().any(|on| on.node == node && on.state != SnapshotState::Taking);
        let whole = in_sync.clone().count() > 0 && in_sync.clone().all(|replica| here(&replica.node));
        progress.show(&format!("taking snapshot {snapshot}"));
        Ok(whole.then_some(found))
    })?;
    if done.nodes.iter().all(|on| on.state != SnapshotState::Held) {
        return Err(Failure::new(
            Code::NotTaken,
            format!("no node could take snapshot {snapshot}"),
            "The engines' logs say why; pools must have space. Delete it then.",
        ));
    }
    output.result(&done, one_row)
}

fn delete(name: &str, snapshot: &str, wait: WaitArgs, client: &Client, output: Output) -> Outcome<()> {
    let path = path(name)?;
    let mut accepted: Accepted = client.delete(&format!("{path}/snapshots/{}", checked_name(snapshot)?))?;
    if !wait.no_wait {
        let look = format!("mainstay snapshot list {name}");
        let _told = GoesOn::work(&format!("deleting snapshot {snapshot} of {name}"), &look, "");
        follow(&format!("deleting snapshot {snapshot}"), wait.wait_s, || {
            let now: ResourceView = client.get(&path)?;
            Ok((!now.snapshots.iter().any(|one| one.name == snapshot)).then_some(()))
        })?;
        accepted.message = format!("snapshot {snapshot} of resource {name} is deleted");
    }
    output.result(&accepted, |accepted| accepted.message.clone())
}

fn roll_back(
    name: &str,
    snapshot: &str,
    request: &SnapshotRollback,
    wait: WaitArgs,
    client: &Client,
    output: Output,
) -> Outcome<()> {
    let path = path(name)?;
    let accepted: Accepted =
        client.post(&format!("{path}/snapshots/{}/rollback", checked_name(snapshot)?), request)?;
    if wait.no_wait {
        return output.result(&accepted, |accepted| accepted.message.clone());
    }
    let look = format!("mainstay resource status {name}");
    let _told = GoesOn::work(&format!("rolling {name} back to {snapshot}"), &look, "");
    let mut progress = Progress::new();
    let mut keep = None;
    let done = follow(&format!("rolling {name} back to {snapshot}"), wait.wait_s, || {
        let now: ResourceView = client.get(&path)?;
        progress.show(&format!("rolling {name} back to {snapshot}"));
        if let Some(rollback) = now.rollback {
            keep = rollback.keep.or(keep.take());
            return Ok(None);
        }
        let done = now.rolled_back.filter(|done| done.snapshot == snapshot && done.index.is_some());
        let why = "its snapshot, or that of the present state, could not be kept on the primary";
        done.map(Some).ok_or_else(|| {
            Failure::new(
                Code::NotRolledBack,
                format!("resource {name} was not rolled back: {why}"),
                "See `mainstay events` and the primary's log. Nothing was changed.",
            )
        })
    })?;
    output.result(&done, |done| {
        let from = done.index.unwrap_or_default();
        let undo = keep.as_ref().map(|keep| {
            format!("; what they held before is in snapshot {keep}: `mainstay snapshot rollback {name} {keep}` undoes this")
        });
        format!("the volumes of {name} hold {snapshot} from entry {from} on{}", undo.unwrap_or_default())
    })
}

#[derive(Serialize)]
struct Cloned {
    files: Vec<PathBuf>,
}

/// Whether this file is a map from which the content of a snapshot is put together.
fn is_map(file: &Path) -> bool {
    matches!(part_at(file), Some((_, Part::Layer(layer))) if layer.kind == LayerKind::Map && !layer.gone)
}

/// Copies the content that a file of a snapshot stands for to a new file. The file appears there
/// whole or not at all. The remains of an interrupted copy have another name, and the next copy
/// replaces them.
fn copy_whole(from: &Path, mut source: File, to: &Path) -> std::io::Result<()> {
    let half = to.with_extension("part");
    let _ = std::fs::remove_file(&half);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&half);
    // The size of a map says nothing about that of the content.
    let whole = source.metadata().ok().filter(|_| !is_map(from)).map_or(0, |found| found.len());
    let _told = Copying::of(&half, whole);
    let copied = file.and_then(|mut file| {
        if is_map(from) {
            return copy_out(from, &file).map_err(std::io::Error::other);
        }
        // Shares the blocks if both files are on one file system that can.
        std::io::copy(&mut source, &mut file).map(drop)
    });
    let copied = copied.and_then(|()| std::fs::hard_link(&half, to));
    let _ = std::fs::remove_file(&half);
    copied
}

/// Copies the files of a snapshot, which share their space with it where the file system can.
fn copy(name: &str, snapshot: &str, directory: &Path, client: &Client, output: Output) -> Outcome<()> {
    let found: SnapshotFiles =
        client.get(&format!("{}/snapshots/{}", path(name)?, checked_name(snapshot)?))?;
    if found.files.is_empty() {
        let holders = found.snapshot.nodes.iter().filter(|on| on.state == SnapshotState::Held);
        let holders: Vec<_> = holders.map(|on| on.node.clone()).collect();
        return Err(Failure::new(
            Code::NotHere,
            format!("this node does not hold snapshot {snapshot}"),
            format!(
                "Run it on {}.",
                if holders.is_empty() { "a node that does".into() } else { holders.join(" or ") }
            ),
        ));
    }
    let own: Vec<PathBuf> = found.own.iter().map(PathBuf::from).collect();
    check_clone(directory, &own, Path::new(&found.pool)).map_err(|unfit| {
        let message = format!("snapshot {snapshot} cannot be copied there: {}", unfit.why);
        Failure::new(Code::BadDirectory, message, unfit.remedy).with_exit(exit::FAILED)
    })?;
    let _told = GoesOn::tell(format!(
        "the clone was not finished. Finished files stay in {}. To make the clone, remove them and repeat the command.",
        directory.display()
    ));
    std::fs::create_dir_all(directory).or_fail(Code::Clone, || format!("make {}", directory.display()))?;
    let mut cloned = Cloned { files: Vec::new() };
    // A state that was kept before a copy goes when the copy ends. The next copy keeps another
    // state under the same names. Open files stay. They are of one moment if the state is still the
    // same when all of them are open.
    let mut open = Vec::new();
    for from in &found.files {
        open.push(File::open(from).or_fail(Code::Clone, || format!("open {from}"))?);
    }
    let now: SnapshotFiles = client.get(&format!("{}/snapshots/{}", path(name)?, checked_name(snapshot)?))?;
    let kept = found.snapshot.name == BEFORE_COPY;
    if now.files != found.files || kept && now.snapshot.nodes != found.snapshot.nodes {
        let what = format!("snapshot {snapshot} has just changed or gone");
        return Err(Failure::new(
            Code::Changed,
            what,
            "See `mainstay snapshot list NAME`, and try again if it is there.",
        ));
    }
    for (n, (from, file)) in found.files.iter().zip(open).enumerate() {
        let to = directory.join(format!("vol{n}"));
        copy_whole(Path::new(from), file, &to)
            .or_fail(Code::Clone, || format!("copy {from} to {}", to.display()))?;
        cloned.files.push(to);
    }
    output.result(&cloned, |cloned| {
        let mount = |file: &PathBuf| format!("  mount -o loop {} MOUNTPOINT", file.display());
        let lines: Vec<_> = cloned.files.iter().map(mount).collect();
        format!(
            "cloned; what is written there changes neither the snapshot nor the resource:\n{}",
            lines.join("\n")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::copy_whole;
    use std::fs;
    use std::path::Path;

    #[test]
    fn a_clone_is_there_whole_or_not_at_all() {
        let directory = tempfile::tempdir().expect("a directory");
        let (from, to, half) = ("from", "vol0", "vol0.part");
        let [from, to, half] = [from, to, half].map(|name| directory.path().join(name));
        fs::write(&from, "whole").expect("a file");
        let open = |path: &Path| fs::File::open(path).expect("it is there");
        // A directory cannot be read.
        assert!(copy_whole(&from, open(directory.path()), &to).is_err());
        assert!(!to.exists() && !half.exists(), "nothing is left of what failed");
        // The remains of an interrupted copy.
        fs::write(&half, "ha").expect("a file");
        copy_whole(&from, open(&from), &to).expect("nothing is in the way");
        assert_eq!(fs::read_to_string(&to).expect("it is there"), "whole");
        assert!(!half.exists());
        fs::write(&to, "changed").expect("a file");
        assert!(copy_whole(&from, open(&from), &to).is_err(), "what is there is not replaced");
        assert_eq!(fs::read_to_string(&to).expect("it is there"), "changed");
    }
}
