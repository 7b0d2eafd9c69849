//! Writes that a file system acknowledged to a service are there, in whatever way its device ends.

use crate::cluster::{Cluster, LIMIT, NODES};
use anyhow::{Context, Result, ensure};
use mainstay_tests::proof::Ledger;
use mainstay_tests::wait_for;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const NAME: &str = "writer";
const DEATHS: usize = 3;
/// Writes of one run of the service before its engine is killed.
const WRITES: usize = 20;

/// Notes that the service took outside its file system. Every write has a name of its own:
/// `<start>.<number>`.
#[derive(Default, Debug)]
struct Notes {
    acknowledged: Vec<String>,
    errors: Vec<String>,
}

impl Notes {
    fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let of =
            |kind: &str| text.lines().filter_map(|line| line.strip_prefix(kind)).map(str::to_owned).collect();
        Ok(Self { acknowledged: of("ack "), errors: of("error ") })
    }

    /// Writes of the run that has begun last.
    fn of_this_run(&self) -> (Option<&str>, usize) {
        let start = |name: &'_ String| name.split_once('.').map(|(start, _)| start.to_owned());
        let last = self.acknowledged.last();
        let run = last.and_then(start);
        let count = self.acknowledged.iter().filter(|name| start(name) == run).count();
        (last.and_then(|name| name.split_once('.')).map(|(start, _)| start), count)
    }
}

/// Appends to a file in the volume, and notes each answer. A write that is killed has no answer.
fn service(notes: &Path) -> String {
    let notes = notes.display();
    format!(
        r#"name = "{NAME}"
resource = "{NAME}"
[mount]
volume = 0
path = "/srv/{NAME}"
fstype = "xfs"
mkfs = true
[[process]]
name = "{NAME}"
command = ["sh", "-c", '''
start=$(date +%s%N)
number=0
while number=$((number + 1)); do
    echo "$start.$number" | dd of=/srv/{NAME}/log oflag=append conv=notrunc,fdatasync status=none
    case $? in
        0) echo "ack $start.$number" ;;
        137) ;;
        *) echo "error $start.$number" ;;
    esac >>{notes}
done
''']
[policy]
restart_limit = 20
"#
    )
}

/// The engine is killed under a service. The service is killed before its device fails, so it sees
/// no error. Every acknowledged write is there when it runs again.
pub fn a_service_sees_no_error_of_a_dying_engine(cluster: &Cluster, _: &Ledger) -> Result<()> {
    let lab = &cluster.lab;
    let path: PathBuf = lab.dir().join("writer.notes");
    let primary = cluster.primary()?;
    lab.create_resource(NAME, "320MiB", &NODES, &["--preferred", &primary])?;
    lab.apply_service(NAME, &service(&path))?;
    let mut before = String::new();
    for death in 1..=DEATHS {
        let looked_at = || format!("death {death}");
        let started = wait_for("writes of a new run", LIMIT, || {
            let notes = Notes::read(&path)?;
            let (start, writes) = notes.of_this_run();
            let start = start.context("nothing was acknowledged yet")?;
            ensure!(start != before && writes >= WRITES, "{writes} writes of {start}");
            Ok(start.to_owned())
        });
        before = started.with_context(looked_at)?;
        // Before the new run had begun, the status may have named the node of the run before it.
        let node = lab.wait_running(NAME, LIMIT).with_context(looked_at)?;
        lab.kill_program(&node, "engine")?;
    }
    let node = wait_for("the service running again", LIMIT, || {
        let notes = Notes::read(&path)?;
        ensure!(notes.of_this_run().0 != Some(&before), "no new run");
        lab.wait_running(NAME, LIMIT)
    })?;
    let notes = Notes::read(&path)?;
    ensure!(notes.errors.is_empty(), "its device has failed while it lived: {:?}", notes.errors);
    let log = lab.exec(&node, &["cat", &format!("/srv/{NAME}/log")])?;
    let there: BTreeSet<&str> = log.lines().collect();
    let lost: Vec<_> = notes.acknowledged.iter().filter(|name| !there.contains(name.as_str())).collect();
    ensure!(lost.is_empty(), "acknowledged and not there: {lost:?}");
    eprintln!("  {} writes acknowledged over {DEATHS} deaths", notes.acknowledged.len());
    lab.cli(&["service", "delete", NAME])?;
    lab.wait_in_sync(NAME, LIMIT)?;
    wait_for("the service gone", LIMIT, || {
        let views = lab.status()?.services;
        ensure!(views.iter().all(|view| view.name != NAME), "it is still there");
        Ok(())
    })?;
    lab.cli(&["resource", "delete", NAME, "--yes"]).map(drop)
}
