//! Replicas in a directory of the test's own, and what crashes and operators leave there.

use super::*;
use mainstay_api::engine::ReplicaStatus;
use mainstay_control::state::{Command, Entry, ResourceSpec, Settings};
use mainstay_pool::replica_at as at;
use mainstay_types::{Epoch, Member, NodeId};
use std::os::unix::fs::MetadataExt;

/// An engine that is not ready, or does not answer, says nothing about a disk.
#[test]
fn only_failures_of_the_disk_are_told_to_the_cluster() {
    let stays = |code: Code| stays_unusable(&Problem::new(code, "", ""));
    assert!(
        [Code::Corrupt, Code::Recover, Code::Disk, Code::WrongDisk, Code::OtherResource]
            .into_iter()
            .all(stays)
    );
    assert!([Code::JournalMissing, Code::WrongJournal, Code::VolatileJournal].into_iter().all(stays));
    let passes =
        [Code::NoHello, Code::InUse, Code::EngineUnreachable, Code::EngineTimeout, Code::UnknownResource];
    assert!(!passes.into_iter().any(stays));
}

/// Name of a label in a directory of the pool.
const LABEL: &str = "replica.json";
const R: ResourceId = ResourceId(1);
const A: Incarnation = Incarnation(9);

fn labelled() -> Label {
    Label { resource: R, name: "db".into(), incarnation: A }
}

fn opened(root: &Path) -> Replicas {
    let engine = EngineLink::start(&root.join("engine.sock"), |_| ());
    Replicas::open(root, Journals::default(), engine).unwrap()
}

/// A replica's directory as it is between the engine's answer and the label.
fn made(directory: &Path) {
    let making = at(directory).making();
    std::fs::create_dir_all(&making).unwrap();
    std::fs::write(making.join("journal"), b"").unwrap();
}

/// Removes the record, as on a node of an earlier release: replicas that are found next count
/// as made here.
fn without_record(root: &Path) {
    drop(std::fs::remove_file(root.join("held.json")));
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Before and after each of the two renames, the files count as a whole replica or as none. The
/// remains of a replica go at the next start.
#[test]
fn a_replica_is_there_from_its_label_on_until_it_is_withdrawn() {
    let root = tempfile::tempdir().unwrap();
    let pool = mainstay_pool::place(root.path());
    let directory = pool.join("db-1");
    std::fs::create_dir_all(pool.join("db-1.making.creating")).unwrap();
    made(&directory);
    assert!(opened(root.path()).stored().is_empty());
    assert_eq!(names(&pool), [""; 0]);

    made(&directory);
    at(&at(&directory).making()).relabel(&labelled()).unwrap();
    assert!(opened(root.path()).stored().is_empty());
    assert_eq!(names(&pool), [""; 0]);

    made(&directory);
    at(&directory).publish(&labelled()).unwrap();
    without_record(root.path());
    assert_eq!(opened(root.path()).stored(), BTreeMap::from([(R, A)]));
    assert_eq!(names(&pool), ["db-1"]);

    std::fs::create_dir_all(pool.join("db-1.removed")).unwrap();
    at(&directory).withdraw().unwrap();
    at(&directory).withdraw().unwrap();
    assert_eq!(
        names(&pool),
        [""; 0],
        "the second time there is nothing, and what the first one left is gone"
    );
    publish_again_and_crash(&directory);
    assert!(opened(root.path()).stored().is_empty());
    assert_eq!(names(&pool), [""; 0]);
}

fn publish_again_and_crash(directory: &Path) {
    made(directory);
    at(directory).publish(&labelled()).unwrap();
    at(directory).withdraw().unwrap();
    assert_eq!(names(directory.parent().unwrap()), ["db-1.removed"]);
}

/// A directory of the pool whose journal is elsewhere, with that or with a link that leads
/// nowhere.
fn linked(directory: &Path, journal: &Path, exists: bool) {
    std::fs::create_dir_all(directory).unwrap();
    std::os::unix::fs::symlink(journal, directory.join("journal")).unwrap();
    if exists {
        std::fs::write(journal, b"journal").unwrap();
    }
}

/// Every step of docs/internals/journals.md, and what the next start makes of a crash after it.
#[test]
fn a_journal_elsewhere_comes_and_goes_with_its_replica() {
    let root = tempfile::tempdir().unwrap();
    let (pool, fast) = (mainstay_pool::place(root.path()), root.path().join("fast"));
    std::fs::create_dir_all(&fast).unwrap();
    let directory = pool.join("db-1");
    let journal = fast.join("db-1.0000000000000009.journal");
    let state = || {
        let stored = opened(root.path()).stored().len();
        (stored, names(&pool), names(&fast))
    };
    let nothing = || (0, vec![], vec![]);
    let whole = || (1, vec!["db-1".to_owned()], vec!["db-1.0000000000000009.journal".to_owned()]);
    for (rest, exists) in [
        ("db-1.making.creating", false),
        ("db-1.making.creating", true),
        ("db-1.making", true),
        ("db-1.removed", true),
        ("db-1.removed", false),
    ] {
        linked(&pool.join(rest), &journal, exists);
        assert_eq!(state(), nothing(), "{rest}, its journal there: {exists}");
    }
    linked(&at(&directory).making(), &journal, true);
    at(&directory).publish(&labelled()).unwrap();
    without_record(root.path());
    assert_eq!(state(), whole());

    // Its device is not mounted while it is removed, and is mounted again.
    let away = root.path().join("away");
    std::fs::rename(&fast, &away).unwrap();
    at(&directory).withdraw().unwrap();
    assert_eq!(opened(root.path()).stored().len(), 0);
    assert_eq!(names(&pool), ["db-1.removed"]);
    let place = Place { resource: R, name: "db".into(), directory: directory.clone(), label: Some(A) };
    let replicas = opened(root.path());
    let refused = replicas.step(&place, None, Step::RemoveFiles).unwrap_err();
    assert!(refused.message.contains("mount its device"), "{refused:?}");
    std::fs::rename(&away, &fast).unwrap();
    assert_eq!(replicas.step(&place, None, Step::RemoveFiles), Ok(StepAnswer::Done));
    assert_eq!(state(), nothing());
}

/// Only files that this program names are removed. A replica whose label is lost is not made
/// anew over its data.
#[test]
fn files_that_this_program_did_not_leave_stay() {
    let root = tempfile::tempdir().unwrap();
    let pool = mainstay_pool::place(root.path());
    let foreign = ["db-1", "db-2024", "notes.removed", "old-7.removed"].map(|name| pool.join(name));
    for directory in &foreign {
        std::fs::create_dir_all(directory).unwrap();
    }
    std::fs::write(foreign[0].join("journal"), b"data").unwrap();
    std::fs::write(foreign[3].join("dump.sql"), b"data").unwrap();
    let replicas = opened(root.path());
    assert!(replicas.stored().is_empty());
    assert!(foreign.iter().all(|directory| directory.exists()));

    let place = Place { resource: R, name: "db".into(), directory: foreign[0].clone(), label: None };
    assert_eq!(replicas.step(&place, None, Step::RemoveFiles), Ok(StepAnswer::Done));
    let refused = replicas.step(&place, None, Step::MakeFiles(Incarnation(3), None)).unwrap_err();
    assert_eq!(refused.code, Code::NoLabel);
    assert_eq!(std::fs::read(foreign[0].join("journal")).unwrap(), b"data");
}

fn whole(directory: &Path, label: &Label) {
    made(directory);
    at(directory).publish(label).unwrap();
}

/// R9: a copy, a renamed directory, and a label that cannot be read cost no other replica
/// anything. All are named.
#[test]
fn only_the_replicas_own_directory_is_used() {
    let root = tempfile::tempdir().unwrap();
    let pool = mainstay_pool::place(root.path());
    whole(&pool.join("db-1"), &labelled());
    for copy in ["db-copy", "db-1.removed", "db-10"] {
        whole(&pool.join(copy), &labelled());
    }
    whole(&pool.join("logs-2"), &Label { resource: ResourceId(2), name: "logs".into(), ..labelled() });
    std::fs::write(pool.join("logs-2").join(LABEL), b"").unwrap();
    let replicas = opened(root.path());
    assert_eq!(replicas.stored(), BTreeMap::from([(R, A)]));
    assert_eq!(names(&pool), ["db-1", "db-1.removed", "db-10", "db-copy", "logs-2"]);
    let left = replicas.notices();
    let left = |name: &str| {
        left.get(&pool.join(name).display().to_string()).map(|notice| notice.what.clone()).unwrap_or_default()
    };
    for copy in ["db-copy", "db-10", "db-1.removed"] {
        assert!(left(copy).contains("label of db-1"), "{copy}: {}", left(copy));
    }
    assert!(left("logs-2").contains("it is empty"), "{}", left("logs-2"));
}

/// R27: an operator has put something else in the place of a replica that is removed.
#[test]
fn only_replicas_that_this_node_made_are_removed() {
    let root = tempfile::tempdir().unwrap();
    let directory = mainstay_pool::place(root.path()).join("db-1");
    whole(&directory, &labelled());
    let replicas = opened(root.path());
    let place =
        |label| Place { resource: R, name: "db".into(), directory: directory.clone(), label: Some(label) };
    let other = Label { incarnation: Incarnation(8), ..labelled() };
    std::fs::write(directory.join(LABEL), serde_json::to_vec(&other).unwrap()).unwrap();
    for (label, stays) in [(A, true), (Incarnation(8), true)] {
        assert_eq!(replicas.step(&place(label), None, Step::RemoveLabel), Ok(StepAnswer::Done));
        assert_eq!(directory.exists(), stays, "{label}");
    }
    let refused = replicas.step(&place(A), None, Step::Look).unwrap_err();
    assert!(refused.message.contains("has not made"), "{refused:?}");
    std::fs::write(directory.join(LABEL), serde_json::to_vec(&labelled()).unwrap()).unwrap();
    std::fs::write(directory.join("notes.txt"), b"of an operator").unwrap();
    assert_eq!(replicas.step(&place(A), None, Step::Look), Ok(StepAnswer::Done));
    assert_eq!(replicas.step(&place(A), None, Step::RemoveLabel), Ok(StepAnswer::Done));
    assert_eq!(replicas.step(&place(A), None, Step::RemoveFiles), Ok(StepAnswer::Done));
    assert!(!directory.exists());
    assert_eq!(names(&directory.with_extension("removed")), ["notes.txt"], "files of others stay");
}

/// The engine has the replica in this directory open, and goes on with these files wherever
/// they are moved.
fn running(root: &Path) -> (Replicas, PathBuf) {
    let directory = mainstay_pool::place(root).join("db-1");
    whole(&directory, &labelled());
    std::fs::write(directory.join("meta"), b"meta").unwrap();
    let replicas = opened(root);
    let id = |file: &str| {
        let found = std::fs::metadata(directory.join(file)).unwrap();
        (file.to_owned(), FileId { dev: found.dev(), ino: found.ino() })
    };
    let files = ["meta", "journal"].map(id).into();
    let status =
        ReplicaStatus { resource: R, name: "db".into(), incarnation: A, files, ..Default::default() };
    replicas.engine.hear(status);
    (replicas, directory)
}

#[test]
fn a_label_that_is_lost_under_a_running_replica_is_written_again() {
    let root = tempfile::tempdir().unwrap();
    let (replicas, directory) = running(root.path());
    let label = directory.join(LABEL);
    std::fs::remove_file(&label).unwrap();
    let notice = replicas.notices().remove(&directory.display().to_string()).unwrap();
    assert!(notice.what.starts_with("is in use") && notice.remedy.contains("put it back"), "{notice:?}");
    let elsewhere = root.path().join("elsewhere");
    std::fs::write(&elsewhere, b"").unwrap();
    std::os::unix::fs::symlink(&elsewhere, &label).unwrap();
    replicas.look_at_places();
    assert_eq!(at(&directory).label(), Found::Label(labelled()));
    assert_eq!(std::fs::read(&elsewhere).unwrap(), b"", "a link is not followed");
    assert_eq!(replicas.take_events().len(), 1);
    assert!(replicas.notices().is_empty() && replicas.gone().is_empty());

    replicas.engine.forget(R);
    std::fs::remove_file(&label).unwrap();
    replicas.look_at_places();
    assert_eq!(at(&directory).label(), Found::NoLabel, "the replica is closed");
}

/// An operator renames the directory of a running replica, puts a copy in its place, and moves
/// it away.
#[test]
fn the_directory_of_a_running_replica_is_missed_where_it_is_not() {
    let root = tempfile::tempdir().unwrap();
    let (replicas, directory) = running(root.path());
    let (pool, renamed) =
        (mainstay_pool::place(root.path()), mainstay_pool::place(root.path()).join("db-1.new"));
    let said = |path: &Path| replicas.notices().remove(&path.display().to_string());
    std::fs::rename(&directory, &renamed).unwrap();
    replicas.look_at_places();
    let notice = said(&renamed).unwrap();
    assert!(notice.what.contains("in use at this moment: it was renamed from db-1"), "{notice:?}");
    assert!(replicas.gone().is_empty());

    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("meta"), b"meta").unwrap();
    std::fs::copy(renamed.join(LABEL), directory.join(LABEL)).unwrap();
    replicas.look_at_places();
    assert!(replicas.gone()[&R].contains("is another one"), "{:?}", replicas.gone());
    assert!(said(&renamed).unwrap().what.starts_with("is in use"));

    let aside = root.path().join("aside");
    std::fs::remove_dir_all(&directory).unwrap();
    std::fs::rename(&renamed, &aside).unwrap();
    replicas.look_at_places();
    assert!(replicas.gone()[&R].contains("gone from the pool"), "{:?}", replicas.gone());
    std::fs::rename(&aside, &directory).unwrap();
    replicas.look_at_places();
    assert!(replicas.gone().is_empty() && replicas.notices().is_empty());
    assert_eq!(names(&pool), ["db-1"]);
}

/// R9, R11: an operator has copied the directory of another node to have less copied, or puts
/// back what the node has removed since.
#[test]
fn a_replica_that_this_node_did_not_make_is_not_used() {
    let root = tempfile::tempdir().unwrap();
    let directory = mainstay_pool::place(root.path()).join("db-1");
    drop(opened(root.path()).held.save());
    let replicas = opened(root.path());
    let place = Place { resource: R, name: "db".into(), directory: directory.clone(), label: None };
    let refused = || {
        let make = Step::MakeFiles(Incarnation(3), None);
        let refused = replicas.step(&place, None, make).unwrap_err();
        assert!(stays_unusable(&refused), "{refused:?}");
        assert!(refused.message.contains(&format!("incarnation {A} of db, which this node has not made")));
        assert!(!refused.message.contains("echo"), "{refused:?}");
        let left = replicas.notices();
        assert!(left[&directory.display().to_string()].what.contains("has not made"), "{left:?}");
        assert_eq!(opened(root.path()).stored(), BTreeMap::new(), "at the next start");
    };
    whole(&directory, &labelled());
    refused();
    std::fs::rename(&directory, root.path().join("copied")).unwrap();

    made(&directory);
    assert_eq!(replicas.step(&place, None, Step::WriteLabel(A)), Ok(StepAnswer::Done));
    assert_eq!(replicas.step(&place, None, Step::MakeFiles(Incarnation(3), None)), Ok(StepAnswer::Holds(A)));
    assert_eq!(opened(root.path()).stored(), BTreeMap::from([(R, A)]));
    replicas.keep(
        Place { directory: directory.clone(), label: Some(A), ..of_db() },
        false,
        &Ok(Ended::Dropped),
    );
    refused();
}

/// R11: an operator has moved the directory away, and the cluster counts on what is in it.
#[test]
fn no_new_replica_is_made_in_the_place_of_one_that_is_missed() {
    let root = tempfile::tempdir().unwrap();
    let (directory, away) =
        (mainstay_pool::place(root.path()).join("db-1"), mainstay_pool::place(root.path()).join("away"));
    drop(opened(root.path()).held.save());
    let replicas = opened(root.path());
    let place = Place { directory: directory.clone(), ..of_db() };
    made(&directory);
    assert_eq!(replicas.step(&place, None, Step::WriteLabel(A)), Ok(StepAnswer::Done));
    let mut wanted = in_sync(A);
    std::fs::rename(&directory, &away).unwrap();
    let make = |wanted: &Resource| replicas.step(&place, Some(wanted), Step::MakeFiles(Incarnation(3), None));
    let missed = make(&wanted).unwrap_err();
    assert_eq!(missed.code, Code::DirectoryGone);
    assert!(missed.message.contains("mv -T") && stays_unusable(&missed), "{missed:?}");
    std::fs::rename(&away, &directory).unwrap();
    assert_eq!(make(&wanted), Ok(StepAnswer::Holds(A)), "it is noticed without a restart");
    std::fs::rename(&directory, &away).unwrap();
    // Another replica has everything, so the engine is asked for a new one here.
    wanted.record.iss[0].incarnation = Incarnation(A.0 + 1);
    assert_ne!(make(&wanted).unwrap_err().code, Code::DirectoryGone);
}

/// A resource that was written to, and whose in-sync set is this replica.
fn in_sync(incarnation: Incarnation) -> Resource {
    let mut state = mainstay_control::State::default();
    let mut apply = |command| assert!(state.apply(Entry { at_ms: 0, command }).is_ok());
    apply(Command::InitCluster { id: 1, name: "c".into(), settings: Settings::default() });
    apply(Command::AddNode {
        name: "a".into(),
        agent_addr: "10.0.0.1:7400".into(),
        engine_addr: "10.0.0.1:7401".into(),
        voter: true,
        witness: false,
        nonce: 1,
    });
    apply(Command::CreateResource {
        name: "db".into(),
        spec: ResourceSpec {
            volumes: vec![64 << 20],
            journal_bytes: 64 << 20,
            replicas: vec![NodeId(1)],
            preferred: Vec::new(),
        },
        choices: Default::default(),
        origin: None,
    });
    let mut resource = state.resources.remove(&R).unwrap();
    resource.record.epoch = Epoch(1);
    resource.record.iss = vec![Member { node: NodeId(1), incarnation }];
    resource
}

fn of_db() -> Place {
    Place { resource: R, name: "db".into(), directory: PathBuf::new(), label: None }
}

/// The label of another resource may be the last that says whose files these are: no command
/// writes over it.
#[test]
fn the_label_of_another_resource_stays() {
    let root = tempfile::tempdir().unwrap();
    let directory = mainstay_pool::place(root.path()).join("db-1");
    whole(&directory, &labelled());
    let replicas = opened(root.path());
    let other = Label { resource: ResourceId(2), name: "logs".into(), incarnation: A };
    std::fs::write(directory.join(LABEL), serde_json::to_vec(&other).unwrap()).unwrap();
    let place = Place { directory, label: Some(A), ..of_db() };
    for step in [Step::Look, Step::MakeFiles(Incarnation(3), None)] {
        let refused = replicas.step(&place, None, step).unwrap_err();
        assert!(refused.message.contains("label is that of logs"), "{refused:?}");
        assert!(refused.message.contains("move the directory out of the pool"), "{refused:?}");
        assert!(!refused.message.contains("echo"), "{refused:?}");
    }
}

/// The operator may remove the node's record of how far its replica reached. Then an older copy
/// that is the last one left is used.
#[test]
fn without_a_record_every_replica_counts_as_it_is() {
    let root = tempfile::tempdir().unwrap();
    let directory = mainstay_pool::place(root.path()).join("db-1");
    whole(&directory, &labelled());
    let replicas = opened(root.path());
    replicas.held.note(R, A, Index(7));
    drop(replicas.held.save());
    assert_eq!(opened(root.path()).held.index(R, A), Index(7));
    std::fs::rename(root.path().join("held.json"), root.path().join("held.json.before")).unwrap();
    let replicas = opened(root.path());
    assert_eq!(replicas.stored(), BTreeMap::from([(R, A)]));
    assert_eq!(replicas.held.index(R, A), Index(0));
}

/// A removal goes on after a crash between its two steps. A replica that lost its label
/// otherwise is not removed.
#[test]
fn a_removal_that_was_interrupted_goes_on() {
    let root = tempfile::tempdir().unwrap();
    let directory = mainstay_pool::place(root.path()).join("db-1");
    whole(&directory, &labelled());
    std::fs::rename(directory.join(LABEL), directory.join("removed.json")).unwrap();
    assert!(opened(root.path()).stored().is_empty());
    assert!(!directory.exists());
}

/// R27: a copy has the name that a replica gets when it goes. The replica goes all the same,
/// and the copy stays.
#[test]
fn a_copy_is_not_in_the_way_of_a_removal() {
    let root = tempfile::tempdir().unwrap();
    let pool = mainstay_pool::place(root.path());
    let directory = pool.join("db-1");
    whole(&directory, &labelled());
    whole(&pool.join("copy"), &labelled());
    std::fs::rename(pool.join("copy"), directory.with_extension("removed")).unwrap();
    let replicas = opened(root.path());
    let place = Place { resource: R, name: "db".into(), directory: directory.clone(), label: Some(A) };
    assert_eq!(replicas.step(&place, None, Step::RemoveLabel), Ok(StepAnswer::Done));
    assert_eq!(opened(root.path()).stored(), BTreeMap::new(), "after a crash");
    whole(&directory, &labelled());
    for step in [Step::RemoveLabel, Step::RemoveFiles] {
        assert_eq!(replicas.step(&place, None, step), Ok(StepAnswer::Done));
    }
    assert_eq!(names(&pool), ["db-1.removed"]);
}

/// The agent finds a directory that an operator puts in the place of a replica while it runs. A
/// directory without a label is told with the remedy.
#[test]
fn a_lost_label_is_reported_with_its_remedy() {
    let root = tempfile::tempdir().unwrap();
    let directory = mainstay_pool::place(root.path()).join("db-1");
    whole(&directory, &labelled());
    let replicas = opened(root.path());
    let place = Place { resource: R, name: "db".into(), directory: directory.clone(), label: Some(A) };
    for (found, says) in [(None, "has lost its label"), (Some("{"), "cannot be read")] {
        match found {
            None => std::fs::remove_file(directory.join(LABEL)).unwrap(),
            Some(bytes) => std::fs::write(directory.join(LABEL), bytes).unwrap(),
        }
        for step in [Step::Look, Step::MakeFiles(Incarnation(3), None)] {
            let refused = replicas.step(&place, None, step).unwrap_err();
            assert!(stays_unusable(&refused) && refused.message.contains(says), "{refused:?}");
        }
    }
    std::fs::write(directory.join(LABEL), serde_json::to_vec(&labelled()).unwrap()).unwrap();
    assert_eq!(replicas.step(&place, None, Step::MakeFiles(Incarnation(3), None)), Ok(StepAnswer::Holds(A)));
}
