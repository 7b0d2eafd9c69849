use super::super::files::Writer;
use super::*;
use mainstay_history::{Minute, WRITE, Work};
use mainstay_types::ResourceId;

/// The first hour that the tests use.
const BEGIN_MS: u64 = 500_000 * 3_600_000;

/// An hour of minutes, in each of which a replica writes as many bytes as the minute has a number.
fn history(place: &Path) -> Files {
    let mut writer = Writer::new(place.join("history"));
    for at in 1..=60 {
        let mut minute = Minute { end_ms: BEGIN_MS + at * 60_000, span_ms: 60_000, ..Minute::default() };
        let mut work = Work { name: "db".into(), primary_ms: 60_000, ..Work::default() };
        work.requests[WRITE].bytes = at;
        work.requests[WRITE].time_us = 5000;
        work.requests[WRITE].buckets.0[5] = 100;
        minute.resources.insert(ResourceId(1), work);
        writer.append(&minute).unwrap();
    }
    Files::new(place.join("history"))
}

fn asked(name: &str, to_ms: u64) -> KeptBaseline {
    KeptBaseline { name: name.into(), from_ms: BEGIN_MS, to_ms, made_ms: 7, step_ms: 0, bytes: 0 }
}

fn written(baselines: &Baselines, name: &str, step_ms: u64) -> Vec<u64> {
    let page = baselines.page((name, step_ms), "n1".into(), &State::default()).unwrap().unwrap();
    page.points.iter().map(|point| point.resources[0].writes.bytes).collect()
}

#[test]
fn a_baseline_answers_as_the_history_did_after_the_history_is_gone() {
    let place = tempfile::tempdir().unwrap();
    let baselines = Baselines::of(place.path());
    assert_eq!(baselines.list().unwrap(), []);
    let history = history(place.path());
    let half = BEGIN_MS + 30 * 60_000;
    let kept = baselines.keep(&history, &asked("friday", half)).unwrap().unwrap();
    std::fs::remove_dir_all(place.path().join("history")).unwrap();
    assert_eq!((kept.step_ms, kept.made_ms), (60_000, 7));
    assert_eq!(baselines.list().unwrap(), [kept]);
    assert_eq!(written(&baselines, "friday", 60_000), (1..=30).collect::<Vec<u64>>());
    assert_eq!(written(&baselines, "friday", 30 * 60_000), [465]);
    // Without a history nothing is kept, and no file is made.
    assert_eq!(baselines.keep(&history, &asked("empty", half)).unwrap(), None);
    assert_eq!(baselines.list().unwrap().len(), 1);
    assert!(baselines.delete("friday").unwrap());
    assert!(!baselines.delete("friday").unwrap());
    assert!(baselines.page(("friday", 0), "n1".into(), &State::default()).unwrap().is_none());
}

#[test]
fn a_name_is_used_once_and_a_node_keeps_so_many_baselines_in_so_many_bytes() {
    let place = tempfile::tempdir().unwrap();
    let baselines = Baselines { bytes_max: 1000, ..Baselines::of(place.path()) };
    let history = history(place.path());
    let keep = |name: &str| baselines.keep(&history, &asked(name, BEGIN_MS + 3_600_000));
    let kept = keep("friday").unwrap().unwrap();
    assert!(kept.bytes < 1200, "{kept:?}");
    assert!(kept.step_ms > 60_000 && kept.step_ms < 3_600_000, "{kept:?}");
    assert_eq!(
        written(&baselines, "friday", 0).iter().sum::<u64>(),
        1830,
        "records became longer, none is lost"
    );
    assert_eq!(keep("friday").unwrap_err().code, Code::NameTaken);
    for number in 1..BASELINES_MAX {
        keep(&format!("b{number}")).unwrap();
    }
    assert_eq!(keep("other").unwrap_err().code, Code::TooManyBaselines);
    assert_eq!(baselines.list().unwrap().len(), BASELINES_MAX);
}

#[test]
fn files_that_are_no_baselines_are_neither_shown_nor_replaced_nor_removed() {
    let place = tempfile::tempdir().unwrap();
    let baselines = Baselines::of(place.path());
    let history = history(place.path());
    let directory = place.path().join("baselines");
    std::fs::create_dir(&directory).unwrap();
    std::fs::create_dir(directory.join("folder")).unwrap();
    for (name, text) in [("notes", "mine"), ("line", "{}\n"), ("friday.new", "cut"), ("other", "x\ny")] {
        std::fs::write(directory.join(name), text).unwrap();
    }
    let end = BEGIN_MS + 3_600_000;
    baselines.keep(&history, &asked("friday", end)).unwrap().unwrap();
    // A copy under another name is no baseline of that name.
    std::fs::copy(directory.join("friday"), directory.join("copy")).unwrap();
    let names: Vec<_> = baselines.list().unwrap().into_iter().map(|one| one.name).collect();
    assert_eq!(names, ["friday"]);
    for name in ["notes", "line", "other", "copy", "folder"] {
        assert_eq!(baselines.keep(&history, &asked(name, end)).unwrap_err().code, Code::HistoryFiles);
        assert!(!baselines.delete(name).unwrap(), "{name}");
        assert!(directory.join(name).exists(), "{name}");
    }
    assert!(!baselines.delete("../history").unwrap());
    let outside = baselines.keep(&history, &asked("../outside", end)).unwrap_err();
    assert_eq!((outside.code, place.path().join("outside").exists()), (Code::BadName, false));
}
