use super::*;
use mainstay_history::{Minute, WRITE, Work};

/// The first hour that the tests use.
const HOUR: u64 = 500_000;

fn minute(end_ms: u64) -> Minute {
    let mut minute = Minute { end_ms, span_ms: 60_000, ..Minute::default() };
    for resource in 1..=3 {
        let mut work = Work { name: format!("db{resource}"), primary_ms: 60_000, ..Work::default() };
        work.requests[WRITE].bytes = end_ms;
        work.requests[WRITE].time_us = 5000;
        minute.resources.insert(ResourceId(resource), work);
    }
    minute
}

fn ends(files: &Files) -> Vec<u64> {
    let mut found = Vec::new();
    files.read(0, u64::MAX, |minute| found.push(minute.end_ms)).unwrap();
    found
}

fn names(files: &Files) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(files.directory())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Minutes of this many hours from [`HOUR`] on.
fn write(writer: &mut Writer, hours: u64) {
    for at in 0..hours * 60 {
        writer.append(&minute(HOUR * HOUR_MS + at * 60_000)).unwrap();
    }
}

#[test]
fn minutes_are_read_as_they_were_written_also_after_a_restart_and_a_cut() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("history");
    let mut writer = Writer::new(directory.clone());
    assert_eq!(writer.files.read(0, u64::MAX, |_| panic!("nothing is there")).unwrap(), None);
    write(&mut writer, 2);
    let mut expected = ends(&writer.files);
    assert_eq!(expected.len(), 120);
    assert_eq!(names(&writer.files), ["500000.minutes", "500001.minutes"]);
    // A crash of the machine has cut the last record.
    let last = directory.join("500001.minutes");
    let bytes = fs::read(&last).unwrap();
    fs::write(&last, &bytes[..bytes.len() - 5]).unwrap();
    expected.pop();
    assert_eq!(ends(&writer.files), expected);
    let mut writer = Writer::new(directory);
    let next = (HOUR + 1) * HOUR_MS + 59 * 60_000 + 1;
    writer.append(&minute(next)).unwrap();
    expected.push(next);
    assert_eq!(ends(&writer.files), expected);
    // An interval begins after its first moment.
    let mut found = Vec::new();
    let (from, to) = (expected[30], expected[33]);
    let since = writer.files.read(from, to, |minute| found.push(minute)).unwrap();
    assert_eq!(found.iter().map(|minute| minute.end_ms).collect::<Vec<_>>(), expected[31..=33]);
    assert_eq!(since, Some(expected[0]));
    assert_eq!(found[0].resources[&ResourceId(2)].name, "db2");
}

#[test]
fn old_hours_are_thinned_and_then_go_so_that_the_files_stay_within_their_bound() {
    let place = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(place.path().join("history"));
    write(&mut writer, 1);
    let hour = writer.files.segments().unwrap()[0].bytes;
    writer.files.bytes_max = 3 * hour;
    let strangers = ["notes", "500000.minutes.old", "+500000.minutes", "0500000.minutes", "500000.Minutes"];
    for name in strangers {
        fs::write(writer.files.directory().join(name), "kept").unwrap();
    }
    fs::create_dir(writer.files.directory().join("499999.minutes")).unwrap();
    let mut most = 0;
    for at in 0..16 * 60 {
        writer.append(&minute((HOUR + 1) * HOUR_MS + at * 60_000)).unwrap();
        most = most.max(writer.files.segments().unwrap().iter().map(|segment| segment.bytes).sum());
    }
    assert!(most <= 3 * hour && most > 2 * hour, "{most} of {}", 3 * hour);
    let segments = writer.files.segments().unwrap();
    let of = |kind| segments.iter().filter(|segment| segment.kind == kind).count();
    assert!(of(TENS) > 4 && of(MINUTES) >= 1, "{segments:?}");
    // The newest hours have their minutes, and no time in between is missing.
    let mut covered = 0;
    let first = segments[0].hour * HOUR_MS;
    writer.files.read(0, u64::MAX, |minute| covered += minute.span_ms).unwrap();
    assert_eq!(covered, (HOUR + 17) * HOUR_MS - first);
    let names = names(&writer.files);
    for name in strangers.iter().chain(&["499999.minutes"]) {
        assert!(names.contains(&(*name).to_owned()), "{name} is gone: {names:?}");
    }
}

#[test]
fn hours_go_after_eight_days_and_a_segment_that_was_being_thinned_goes_at_once() {
    let place = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(place.path().join("history"));
    write(&mut writer, 1);
    fs::write(writer.files.directory().join("500000.new"), "half").unwrap();
    let last = (HOUR + 1) * HOUR_MS + KEPT_MS;
    writer.append(&minute(last - 1)).unwrap();
    assert_eq!(names(&writer.files), ["500000.minutes", "500192.minutes"]);
    writer.append(&minute(last)).unwrap();
    assert_eq!(names(&writer.files), ["500192.minutes", "500193.minutes"]);
    assert_eq!(ends(&writer.files), [last - 1, last]);
}

#[test]
fn a_directory_that_cannot_be_written_is_an_error_and_works_again_later() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("history");
    fs::write(&directory, "in the way").unwrap();
    let mut writer = Writer::new(directory.clone());
    assert!(writer.append(&minute(HOUR * HOUR_MS)).is_err());
    fs::remove_file(&directory).unwrap();
    writer.append(&minute(HOUR * HOUR_MS)).unwrap();
    // Files that vanish are made anew.
    fs::remove_dir_all(&directory).unwrap();
    writer.append(&minute(HOUR * HOUR_MS + 1)).unwrap();
    assert_eq!(ends(&writer.files), [HOUR * HOUR_MS + 1]);
}
